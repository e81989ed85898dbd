"""`pgbeat top`: what runs, what waits and where, live."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import click
from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.text import Text
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from pgbeat.access.actors import Actor
from pgbeat.broker import queues
from pgbeat.broker.queues import QueueSummary
from pgbeat.cli.operations import top_page
from pgbeat.cli.operations.top_page import Snapshot
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.actors import as_onlooker
from pgbeat.cli.terminal.keys import keys
from pgbeat.cli.terminal.numbers import RealRange
from pgbeat.cli.terminal.options import FLAG, option
from pgbeat.cli.terminal.target import Target
from pgbeat.database import connections
from pgbeat.errors import NotFound
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.running import executions
from pgbeat.monitoring import beats, worker_usage
from pgbeat.monitoring.metrics import gauges
from pgbeat.views.broker import queue, worker
from pgbeat.views.jobs import progress_of
from pgbeat.views.lanes import usage

#: Running jobs that are read, at most.
_RUNNING = 100
#: Seconds between two looks at the size of the terminal.
_BLINK = 0.2


@click.command("top")
@option(
    "--interval", "SECONDS", "Time between two looks; 2.", default=2.0, type=RealRange(0.2, 3600)
)
@option("--once", FLAG, "Show it once, as if the output were no terminal.")
@as_onlooker
def top_command(target: Target, interval: float, once: bool, actor: Actor) -> None:
    """Show what runs, what waits and where, live, until you press q or Ctrl-C.

    The beats, the running jobs, the lanes, the queues, the workers. Any other key brings it up to
    date at once. If the output is not a terminal, and with --json, it is shown once.

    Its JSON has `at`, `leader`, `standbys`, `troubles`, `workers`, `jobs` (numbers by state),
    `running` (`id`, `task`, `worker`, `started_at`, `progress`), `lanes` and `queues`.
    """
    if once or printing.is_json() or not sys.stdout.isatty():
        snapshot = _look(target, actor)
        if printing.is_json():
            printing.echo_json(_as_json(snapshot))
        else:
            _show(snapshot)
        return
    _follow(target, actor, interval)


def _show(snapshot: Snapshot) -> None:
    """Prints the page, whole."""
    printing.show(*top_page.header(snapshot))
    shown = top_page.blocks(snapshot)
    for block in shown:
        click.echo()
        printing.show_table(block.rows, names=block.names)
    if not shown:
        click.echo(f"\n{top_page.NOTHING}")


class _Page:
    """The page as it fits the terminal, below the problem."""

    def __init__(self) -> None:
        self.found: Snapshot | None = None
        self.problem = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width, height = console.size
        problem = [Text(self.problem, "red")] if self.problem else []
        page = [] if self.found is None else top_page.page(self.found, width, height - len(problem))
        for line in [*problem, *page]:
            line.no_wrap, line.overflow = True, "ellipsis"
            yield line


def _follow(target: Target, actor: Actor, interval: float) -> None:
    page = _Page()
    page.found = _look(target, actor)  # an error now is one of the command line's
    screen = Live(screen=True, auto_refresh=False)
    with suppress(KeyboardInterrupt), keys() as wait, screen:
        while _goes_on(screen, page, wait, interval):
            try:
                page.found, page.problem = _look(target, actor), ""
            except DBAPIError as error:
                page.problem = f"Not up to date: {connections.first_line(error)}"


def _goes_on(screen: Live, page: _Page, wait: Callable[[float], str], interval: float) -> bool:
    """Shows the page until the interval is over or a key is pressed; returns whether to continue.

    It is drawn again when the terminal gets another size.
    """
    end, size = time.monotonic() + interval, None
    while (left := end - time.monotonic()) > 0:
        if size != screen.console.size:
            size = screen.console.size
            screen.update(page, refresh=True)
        key = wait(min(left, _BLINK))
        if key:
            return key not in ("q", "Q")
    return True


def _look(target: Target, actor: Actor) -> Snapshot:
    with target.transaction(dry_run=True) as connection:
        which = Filter(namespace=target.namespace, state="running")
        running = target.redactor(actor).rows(jobs.listing(connection, which, limit=_RUNNING))
        running.sort(key=lambda job: (job.started_at or job.created_at, str(job.id)))
        counts: dict[str, int] = {}
        for (state, _), count in gauges.jobs(connection, target.namespace).items():
            counts[state] = counts.get(state, 0) + count
        return Snapshot(
            connections.now(connection),
            beats.status(connection, target.settings),
            worker_usage.listing(connection, target.namespace),
            counts,
            running,
            executions.newest(connection, [job.id for job in running]),
            lanes.listing(connection, target.namespace),
            _queues(target, connection),
        )


def _queues(target: Target, connection: Connection) -> list[QueueSummary]:
    try:
        target.require_broker(connection)
    except NotFound:  # the broker is elsewhere
        return []
    return [row for row in queues.all_queues(connection) if not row.is_internal]


def _as_json(snapshot: Snapshot) -> dict[str, Any]:
    beat, runs = snapshot.beat, snapshot.executions
    return {
        "at": snapshot.now,
        "leader": None if beat.leader is None else beat.leader.label,
        "standbys": [standby.label for standby in beat.standbys],
        "troubles": beat.troubles,
        "workers": [worker(row) for row in snapshot.workers],
        "jobs": snapshot.counts,
        "running": [
            {
                "id": job.id,
                "task": job.task,
                "worker": job.worker,
                "started_at": job.started_at,
                "progress": progress_of(runs[job.id]) if job.id in runs else None,
            }
            for job in snapshot.running
        ],
        "lanes": [usage(row) for row in snapshot.lanes],
        "queues": [queue(row) for row in snapshot.queues],
    }
