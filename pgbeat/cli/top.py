"""`pgbeat top`: what runs, what waits and where, live."""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from pgbeat.access.actors import Actor
from pgbeat.broker import queues
from pgbeat.broker.queues import QueueSummary
from pgbeat.cli import job_views, printing
from pgbeat.cli.actors import as_onlooker
from pgbeat.cli.printing import Cell, counted, json_option, span, styled
from pgbeat.cli.target import Target, pass_target
from pgbeat.database import connections
from pgbeat.errors import NotFound
from pgbeat.jobs import executions
from pgbeat.jobs import model as jobs
from pgbeat.jobs.executions import Execution
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes.model import LaneUsage
from pgbeat.jobs.model import Filter, Job
from pgbeat.monitoring import beats, gauges
from pgbeat.monitoring.beats import Status

#: Running jobs that are read, at most.
_RUNNING = 100
#: Lines of a table beside its rows: one above, the title, the header, how many more there are.
_AROUND = 4


class _Snapshot(NamedTuple):
    """What the page shows, as of one moment."""

    now: datetime
    beat: Status
    workers: int
    #: Numbers of jobs by state.
    counts: dict[str, int]
    running: list[Job]
    executions: dict[Any, Execution]
    lanes: list[LaneUsage]
    queues: list[QueueSummary]


@click.command("top")
@click.option(
    "--interval", type=click.FloatRange(0.2, 3600), default=2.0, metavar="SECONDS",
    help="Time between two looks; 2.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Show it once, as if the output were no terminal.")
@as_onlooker
@json_option
@pass_target
def top_command(target: Target, interval: float, once: bool, actor: Actor) -> None:
    """Show what runs, what waits and where, live, until you press Ctrl-C.

    The beats, the workers, the running jobs, the lanes, the queues. If the output is not a
    terminal, and with --json, it is shown once.
    """
    if once or printing.is_json() or not sys.stdout.isatty():
        found = _look(target, actor)
        if printing.is_json():
            printing.echo_json(_as_json(found))
        else:
            for part in _parts(found, lines=None):
                printing.show(part)
        return
    _follow(target, actor, interval)


def _follow(target: Target, actor: Actor, interval: float) -> None:
    found = _look(target, actor)  # an error now is one of the command line's
    problem: list[RenderableType] = []
    with Live(screen=True, auto_refresh=False) as live, suppress(KeyboardInterrupt):
        while True:
            lines = live.console.height - len(problem)
            live.update(Group(*problem, *_parts(found, lines)), refresh=True)
            time.sleep(interval)
            try:
                found, problem = _look(target, actor), []
            except DBAPIError as error:
                said = f"Not up to date: {connections.first_line(error)}"
                problem = [Text(said, style="red", no_wrap=True, overflow="ellipsis")]


def _look(target: Target, actor: Actor) -> _Snapshot:
    with target.transaction(dry_run=True) as connection:
        which = Filter(namespace=target.namespace, state="running")
        running = target.redactor(actor).rows(jobs.listing(connection, which, limit=_RUNNING))
        running.sort(key=lambda job: (job.started_at or job.created_at, str(job.id)))
        counts: dict[str, int] = {}
        for (state, _), count in gauges.jobs(connection, target.namespace).items():
            counts[state] = counts.get(state, 0) + count
        return _Snapshot(
            connections.now(connection),
            beats.status(connection, target.settings),
            gauges.workers(connection),
            counts,
            running,
            executions.newest(connection, [job.id for job in running]),
            lanes.listing(connection, target.namespace),
            _queues(target, connection),
        )


def _queues(target: Target, connection: Connection) -> list[QueueSummary]:
    try:
        tables = target.broker(connection)
    except NotFound:  # the broker is elsewhere
        return []
    return [each for each in queues.all_queues(connection, tables) if not each.is_internal]


def _as_json(found: _Snapshot) -> dict[str, Any]:
    beat = found.beat
    return {
        "at": found.now,
        "leader": None if beat.leader is None else beat.leader.label,
        "standbys": [each.label for each in beat.standbys],
        "troubles": beat.troubles,
        "workers": found.workers,
        "jobs": found.counts,
        "running": [
            {
                "id": job.id,
                "task": job.task,
                "worker": job.worker,
                "started_at": job.started_at,
                "progress": _progress(found, job) or None,
            }
            for job in found.running
        ],
        "lanes": [
            {
                "name": each.lane.name,
                "running": each.running,
                "limit": each.lane.max_running,
                "waiting": each.waiting,
                "waiting_since": each.waiting_since,
                "paused_at": each.lane.paused_at,
            }
            for each in found.lanes
        ],
        "queues": [each._asdict() for each in found.queues],
    }


# -- the page


def _parts(found: _Snapshot, lines: int | None) -> list[RenderableType]:
    """Returns the parts of the page, cut to so many lines."""
    parts: list[RenderableType] = [*_beats(found), _jobs(found)]
    left = None if lines is None else lines - len(parts)
    tables = {
        "Lanes": [_lane(each, found.now) for each in found.lanes],
        "Queues": [_queue(each) for each in found.queues],
        "Running": [_running(found, job) for job in found.running],
    }
    titles = [title for title, rows in tables.items() if rows]
    for number, title in enumerate(titles):
        rows, most = tables[title], None
        if left is not None:  # what comes after it gets a share, too
            most = max(left // (len(titles) - number) - _AROUND, 1)
            left -= min(most, len(rows)) + _AROUND
        parts += ["", _table(title, rows[:most], more=len(rows[most:]) if most else 0)]
    if not titles:
        parts += ["", "Nothing runs, and there are no lanes and no queues."]
    return parts


def _beats(found: _Snapshot) -> list[Text]:
    """Returns a line on beats and workers, and one for each trouble."""
    beat = found.beat
    said = Text(f"{printing.utc(found.now)} UTC   ", no_wrap=True, overflow="ellipsis")
    said.append(counted(found.workers, "worker"), style="" if found.workers else "red")
    if beat.leader is not None:
        said.append("   ").append(f"beat {beat.leader.label} leads", style="green")
    if beat.standbys:
        said.append(f", {counted(len(beat.standbys), 'standby', 'standbys')}")
    troubles = map(printing.line, beat.troubles)
    return [said, *(Text(each, "red", no_wrap=True, overflow="ellipsis") for each in troubles)]


def _jobs(found: _Snapshot) -> Text:
    said = Text("jobs: ", no_wrap=True, overflow="ellipsis")
    shown = [(state, count) for state, count in found.counts.items() if count]
    for number, (state, count) in enumerate(shown):
        most = gauges.OVER if state in jobs.ENDED else gauges.MOST
        plus = "+" if count >= most else ""
        said.append(", " if number else "").append(f"{count:,}{plus} ").append(styled(state))
    return said if shown else said.append("none")


def _table(title: str, rows: Sequence[dict[str, Cell]], more: int) -> Table:
    made = Table(
        box=None, pad_edge=False, header_style="bold", title=title, title_justify="left",
        title_style="bold cyan", caption=f"… and {more} more" if more else None,
        caption_justify="left",
    )  # fmt: skip
    for number, column in enumerate(rows[0]):
        is_number = all(isinstance(row[column], int | None) for row in rows)
        made.add_column(
            column,
            no_wrap=True,
            overflow="ellipsis",
            justify="right" if number and is_number else "left",
        )
    for row in rows:
        cells = [each if isinstance(each, Text) else _plain(each) for each in row.values()]
        made.add_row(*cells)
    return made


def _plain(cell: Cell) -> str:
    return "" if cell is None else printing.line(cell)


def _lane(each: LaneUsage, now: datetime) -> dict[str, Cell]:
    since = None if each.waiting_since is None else span(now - each.waiting_since, units=1)
    return {
        "lane": each.lane.name,
        "running": each.running,
        "limit": each.lane.max_running,
        "waiting": each.waiting,
        "for": since,
        "": styled("paused") if each.lane.paused_at is not None else None,
    }


def _queue(each: QueueSummary) -> dict[str, Cell]:
    is_stuck = each.waiting and not each.consumers
    remark = Text("no consumer", style="red") if is_stuck else None
    return {
        "queue": each.name,
        "waiting": each.waiting,
        "delayed": each.delayed,
        "claimed": each.claimed,
        "dead": each.dead,
        "consumers": each.consumers,
        "oldest": None if each.age is None else span(each.age, units=1),
        "": styled("paused") if each.paused_at is not None else remark,
    }


def _running(found: _Snapshot, job: Job) -> dict[str, Cell]:
    return {
        "job": str(job.id)[:8],
        "task": job.task,
        "for": span(found.now - (job.started_at or job.created_at), units=1),
        "worker": job.worker,
        "progress": _progress(found, job) or None,
    }


def _progress(found: _Snapshot, job: Job) -> str:
    run = found.executions.get(job.id)
    return "" if run is None else job_views.progress(run)
