"""Tells whether a process of this host is alive, or can do its work: `pgbeat health`.

A probe runs every few seconds beside the process that it asks, so this module imports next to
nothing, and what asks the database only for that.
"""

import fcntl
import os
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

ROLES = ("beat", "worker", "web")

#: Seconds after which a process without a sign of life counts as stuck, the port of `pgbeat web`,
#: and seconds for its answer.
STALE, PORT, _PATIENCE = 30.0, 8080, 5.0
SUFFIX = ".pulse"


class ProbeResult(NamedTuple):
    """Whether all is well, and a sentence."""

    ok: bool
    detail: str


class Heard(NamedTuple):
    """A process of this host, and how many seconds ago it gave its last sign of life."""

    pid: int
    age: float


def folder() -> str:
    """Returns the folder of the files: `PGBEAT_HEALTH_DIR`, or one of this user's."""
    # As `tempfile` finds it, which takes ten times as long to import.
    temporary = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108
    return os.environ.get("PGBEAT_HEALTH_DIR") or f"{temporary}/pgbeat-{os.getuid()}"


def heard(role: str) -> list[Heard]:
    """Returns the running processes of a role on this host that give signs of life, or did."""
    try:
        names = sorted(os.listdir(folder()))
    except OSError:  # none has started yet
        return []
    found = []
    for name in names:
        pid = name.removeprefix(f"{role}-").removesuffix(SUFFIX)
        if name != f"{role}-{pid}{SUFFIX}" or not pid.isdigit() or not is_alive(int(pid)):
            continue
        try:
            with open(f"{folder()}/{name}") as file:
                age = time.monotonic() - float(file.read())
                if age <= STALE or _is_locked(file):
                    found.append(Heard(int(pid), age))
        except (OSError, ValueError):  # it ends, or has not written yet
            continue
    return [each for each in found if each.age >= 0]  # else from before the system's start


def _is_locked(file: IO[str]) -> bool:
    """Returns whether the process that wrote a file is alive; its id may be another's by now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def is_alive(pid: int) -> bool:
    """Returns whether there is such a process."""
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


def ask(
    role: str,
    check: str,
    connect: "Callable[[], psycopg.Connection[Any]]",
    within: float = STALE,
    port: int = PORT,
) -> ProbeResult:
    """Asks the processes of a role (`beat`, `worker`, `web`): `live`, or with the database `ready`.

    `connect` opens a connection to the database; only `ready` calls it.
    """
    if role == "web":
        return _web(check, port)
    signs = heard(role)
    result = _alive(role, signs, within)
    if check == "ready" and result.ok:
        return _known(role, [each.pid for each in signs], connect)
    return result


def quick(words: list[str]) -> ProbeResult | None:
    """Answers a plain `health ROLE`, `--live` or `--ready`; `None` needs a reader of options."""
    checks = {(): "live", ("--live",): "live", ("--ready",): "ready"}
    check = checks.get(tuple(words[2:]))
    if words[:1] != ["health"] or words[1:2] not in ([role] for role in ROLES) or check is None:
        return None
    url = os.environ.get("PGBEAT_URL", "")
    if check == "ready" and words[1] != "web" and not is_plain(url):
        return None
    return ask(words[1], check, lambda: open_plain(url))


def is_plain(url: str) -> bool:
    """Returns whether libpq reads a database's URL as SQLAlchemy does, so that it isn't needed."""
    import re

    return re.fullmatch(_PLAIN, url) is not None


#: Among other things, it names one server, and no option that only pgbeat knows.
_PLAIN = (
    r"postgres(ql)?://([\w.~%-]*(:[\w.~%-]*)?@)?[\w.-]*(:\d+)?/[\w.~-]+"
    r"(\?(?!.*(assume_role|%2[cC]))[\w.~%&=/-]*)?"
)


def open_plain(url: str) -> "psycopg.Connection[Any]":
    """Connects to the database of a plain URL, with psycopg alone."""
    from psycopg.conninfo import conninfo_to_dict

    from pgbeat.database.watched import WatchedConnection

    parts: dict[str, Any] = {"application_name": "pgbeat cli", **conninfo_to_dict(url)}
    connection = WatchedConnection.open(**parts)
    connection.prepare_threshold = None
    return connection


def _alive(role: str, signs: list[Heard], within: float) -> ProbeResult:
    stuck = [each for each in signs if each.age > within]
    if stuck:
        one = max(stuck, key=lambda each: each.age)
        return ProbeResult(False, f"{role} {one.pid} has given no sign of life for {one.age:.0f} s")
    if not signs:
        return ProbeResult(False, f"no {role} gives signs of life in {folder()}")
    return ProbeResult(True, f"{role} {_named([each.pid for each in signs])}: alive")


def _known(
    role: str, pids: list[int], connect: "Callable[[], psycopg.Connection[Any]]"
) -> ProbeResult:
    """Returns whether the database knows these processes as alive."""
    import psycopg

    from pgbeat.processes import known

    try:
        with connect() as raw:
            if role == "worker":
                living = known.workers(raw, pids)
            else:
                beats = known.beats(raw, pids)
    except psycopg.Error as error:
        return ProbeResult(False, f"{role} {_named(pids)}: the database says: {_line(error)}")
    if role == "worker":
        verb = "knows" if living else "doesn't know"
        named = _named(living or pids)
        return ProbeResult(bool(living), f"worker {named}: the database {verb} it as alive")
    for pid, leads in beats.items():
        return ProbeResult(True, f"beat {pid} {'leads' if leads else 'stands by'}")
    return ProbeResult(False, f"beat {_named(pids)} neither leads nor stands by")


def _web(check: str, port: int) -> ProbeResult:
    """Returns whether `pgbeat web` is alive (`live`) or can serve (`ready`), as it answers."""
    import socket

    path = "/readyz" if check == "ready" else "/healthz"
    try:
        with socket.create_connection(("127.0.0.1", port), _PATIENCE) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
            answer = connection.makefile("rb").read(20_000).decode(errors="replace")
    except OSError as error:
        return ProbeResult(False, f"web at port {port} doesn't answer: {error}")
    head, _, body = answer.partition("\r\n\r\n")
    status = head.split(" ", 2)[1:2]
    if status == ["200"]:
        return ProbeResult(True, f"web at port {port}: {path} says all is well")
    return ProbeResult(False, f"web at port {port}: {path} says {''.join(status)}: {_detail(body)}")


def _detail(body: str) -> str:
    import json

    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return body[:200]


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _named(pids: list[int]) -> str:
    return ", ".join(map(str, pids))
