"""`pgbeat health`: whether a process of this host is alive, or can do its work; for probes.

It must start quickly: what asks the database is imported only for that.
"""

import json
import socket
from typing import NamedTuple

import click

from pgbeat.cli import AS_JSON, LATE_TARGET
from pgbeat.processes import pulse

#: Seconds for `pgbeat web` to answer.
_PATIENCE = 5.0


class ProbeResult(NamedTuple):
    """Whether all is well, and a sentence."""

    ok: bool
    detail: str


@click.command("health")
@click.argument("role", type=click.Choice(["beat", "worker", "web"]))
@click.option("--live", "check", flag_value="live", default=True, help="Is it alive? (default)")
@click.option("--ready", "check", flag_value="ready", help="Can it work? Asks the database.")
@click.option(
    "--within",
    type=click.FloatRange(min=1),
    default=pulse.STALE,
    metavar="SECONDS",
    help="How long ago the last sign of life may be.",
)
@click.option("--port", type=int, default=8080, help="Of `pgbeat web`.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def health_command(
    ctx: click.Context, role: str, check: str, within: float, port: int, as_json: bool
) -> None:
    """Say whether this host's beat, worker or web side is alive; exit with 1 if not.

    --live asks the process itself: a database that is away is no reason to restart it. --ready asks
    the database whether the process is known there: a beat that leads or stands by, a worker that
    records. Run it as the user of the process, with the same PGBEAT_HEALTH_DIR.
    """
    ctx.meta[AS_JSON] = as_json
    if role == "web":
        found = _answer(port, "/readyz" if check == "ready" else "/healthz")
    else:
        heard = pulse.heard(role)
        found = _alive(role, heard, within)
        if check == "ready" and found.ok:
            found = _known(ctx, role, [each.pid for each in heard])
    if as_json:
        click.echo(json.dumps({"role": role, "check": check, **found._asdict()}))
    else:
        click.echo(found.detail, err=not found.ok)
    ctx.exit(0 if found.ok else 1)


def _alive(role: str, heard: list[pulse.Heard], within: float) -> ProbeResult:
    stuck = [each for each in heard if each.age > within]
    if stuck:
        one = max(stuck, key=lambda each: each.age)
        return ProbeResult(False, f"{role} {one.pid} has given no sign of life for {one.age:.0f} s")
    if not heard:
        return ProbeResult(False, f"no {role} gives signs of life in {pulse.folder()}")
    return ProbeResult(True, f"{role} {_named([each.pid for each in heard])}: alive")


def _answer(port: int, path: str) -> ProbeResult:
    from http.client import HTTPConnection

    connection = HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read(10_000).decode(errors="replace")
    except OSError as error:
        return ProbeResult(False, f"web at port {port} doesn't answer: {error}")
    finally:
        connection.close()
    if answer.status == 200:
        return ProbeResult(True, f"web at port {port}: {path} says all is well")
    return ProbeResult(False, f"web at port {port}: {path} says {answer.status}: {_detail(body)}")


def _detail(body: str) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return body[:200]


def _known(ctx: click.Context, role: str, pids: list[int]) -> ProbeResult:
    """Returns whether the database knows these processes as alive."""
    target = ctx.meta[LATE_TARGET]()
    with target.session() as connection:
        if role == "worker":
            from pgbeat.jobs.running import workers

            known = workers.of_host(connection, socket.gethostname(), pids)
            if known:
                return ProbeResult(True, f"worker {_named(known)}: the database knows it as alive")
            return ProbeResult(
                False, f"worker {_named(pids)}: the database doesn't know it as alive"
            )
        from pgbeat.monitoring import beats

        status = beats.status(connection, target.settings)
    for word, group in (("leads", [status.leader]), ("stands by", status.standbys)):
        for beat in group:
            if beat is not None and beat.host == socket.gethostname() and beat.process in pids:
                return ProbeResult(True, f"beat {beat.process} {word}")
    return ProbeResult(False, f"beat {_named(pids)} neither leads nor stands by")


def _named(pids: list[int]) -> str:
    return ", ".join(map(str, pids))
