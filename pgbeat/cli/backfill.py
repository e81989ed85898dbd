"""`pgbeat backfill`: what was due in the past and was not launched."""

import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Event
from types import FrameType
from typing import Any

import click

from pgbeat.beat.backfill import Gaps, backfill, due_times, gaps
from pgbeat.beat.manual import recorded
from pgbeat.cli import printing
from pgbeat.cli.asking import dry_run_option
from pgbeat.cli.failures import FAILED, SKIPPED, BadInput
from pgbeat.cli.options import in_zone, read_moment
from pgbeat.cli.printing import counted, line, styled, utc
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option
from pgbeat.database import connections
from pgbeat.schedules import calendars
from pgbeat.schedules import model as schedules
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.ticks import Tick
from pgbeat.timetables import zone

#: Exit status of what was interrupted.
_INTERRUPTED = 130


@dataclass(slots=True)
class _Run:
    """What came of it so far."""

    ticks: list[Tick] = field(default_factory=list)
    failures: int = 0
    interrupted: bool = False
    stopped: bool = False

    def add(self, tick: Tick) -> None:
        self.ticks.append(tick)
        self.failures = self.failures + 1 if tick.outcome == "failed" else 0


@click.command("backfill")
@click.argument("name")
@click.option(
    "--from",
    "start",
    type=read_moment,
    metavar="WHEN",
    required=True,
    help="The first due time that counts: 2026-12-24, 2026-12-24T09:00, …T09:00Z.",
)
@click.option("--to", "end", type=read_moment, metavar="WHEN", help="The last one; now.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Refuse to launch more.",
)
@dry_run_option
@json_option
@click.pass_context
@pass_target
def backfill_command(
    target: Target,
    ctx: click.Context,
    name: str,
    start: datetime,
    end: datetime | None,
    limit: int,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Launch what a schedule was due for in the past and missed.

    That is all that no tick launched, oldest first, each due time as a tick of its own. Conditions
    are asked as things are now; overlap and min_interval don't count, and the schedule's run state
    stays. Times without an offset are those of its zone. What is interrupted (Ctrl-C) goes on when
    it is called again. Needs the app.
    """
    with target.transaction() as connection:
        now = connections.now(connection)
        row = schedules.get(connection, name, namespace=target.settings.namespace)
        local = zone(row.timezone or target.timezone)
        first = in_zone(start, local, "--from")
        last = now if end is None else in_zone(end, local, "--to")
        _check_period(first, last, now)
        timetable = due_times(row, target.timezone)
        named = [row.calendar] if row.calendar else []
        known = calendars.load(connection, named, namespace=row.namespace)
        found = gaps(connection, row, timetable, known, first, last, timezone=target.timezone)
    number = len(found.times)
    if number > limit:
        raise BadInput(
            f"{number:,} due times of schedule {name!r} were not launched then, more than --limit "
            f"{limit:,}; raise it, or give a shorter period"
        )
    run = _Run()
    if found.times and not dry_run:
        _launch(target, name, found, run, quiet=as_json)
    if as_json:
        printing.echo_json(_json(row, first, last, found, run, dry_run=dry_run))
    elif dry_run or not found.times:
        _show_gaps(row, found, local.key)
    else:
        _show_run(found, run)
    _remark(target, row, run)
    ctx.exit(_status(run))


def _check_period(start: datetime, end: datetime, now: datetime) -> None:
    for flag, moment in (("--from", start), ("--to", end)):
        if moment > now:
            raise click.BadParameter(
                f"{utc(moment)} UTC is to come; what is due then is launched by beat",
                param_hint=f"'{flag}'",
            )
    if end < start:
        raise click.BadParameter(
            f"{utc(end)} UTC is before --from, {utc(start)} UTC", param_hint="'--to'"
        )


def _launch(target: Target, name: str, found: Gaps, run: _Run, *, quiet: bool) -> None:
    app = target.require_app("a backfill needs the app, whose launchers and tasks it runs")
    with target.session() as connection, _interruptible() as interrupted:
        row = schedules.get(connection, name, namespace=target.settings.namespace)
        patience = max(1, row.max_retries)
        decisions = backfill(
            connection, app, target.settings, name, found.times,
            job_source="user_cli", created_by=target.author.name,
            note=recorded(target.author, "backfill"),
        )  # fmt: skip
        shows = sys.stderr.isatty() and not quiet
        with closing(decisions):
            for number, decision in enumerate(decisions, start=1):
                run.add(decision.tick)
                if shows:
                    at = utc(decision.tick.due_at)
                    click.echo(f"\r{number} of {len(found.times)}: {at}", err=True, nl=False)
                is_last = number == len(found.times)
                run.interrupted = interrupted.is_set() and not is_last
                run.stopped = run.failures >= patience and not is_last
                if run.interrupted or run.stopped:
                    break
        if shows:
            click.echo(err=True)


@contextmanager
def _interruptible() -> Iterator[Event]:
    """Ctrl-C sets the event, for what is under way to be finished; once more, it interrupts."""
    interrupted = Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _status(run: _Run) -> int:
    outcomes = {tick.outcome for tick in run.ticks}
    if run.interrupted:
        return _INTERRUPTED
    if "failed" in outcomes:
        return FAILED
    return SKIPPED if outcomes == {"skipped"} else 0


def _json(
    row: Schedule, start: datetime, end: datetime, found: Gaps, run: _Run, *, dry_run: bool
) -> dict[str, Any]:
    return {
        "schedule": row.name,
        "from": start,
        "to": end,
        "launched_before": found.launched,
        "excluded": found.excluded,
        "pending": found.pending,
        "times": found.times,
        "dry_run": dry_run,
        "interrupted": run.interrupted,
        "ticks": [printing.tick_json(tick) for tick in run.ticks],
    }


def _show_gaps(row: Schedule, found: Gaps, zone_name: str) -> None:
    rest = _rest(found)
    if not found.times:
        click.echo(f"There is nothing to launch{': ' + rest if rest else ''}.")
        return
    number = counted(len(found.times), "due time")
    click.echo(f"Would launch {row.name!r} for {number}{', but not for ' + rest if rest else ''}.")
    local = zone(zone_name)
    zones = [local] if local.key == "UTC" else [local, UTC]
    table = printing.table(*map(str, zones))
    for moment in found.times:
        table.add_row(*(f"{moment.astimezone(own):%a %Y-%m-%d %H:%M:%S %Z}" for own in zones))
    printing.show(table)


def _rest(found: Gaps) -> str:
    """The due times that are left as they are, and why."""
    words = (
        (found.launched, "launched before"),
        (found.excluded, "left out by its calendar"),
        (found.pending, "for the beat to decide"),
    )
    parts = [f"{number} {word}" for number, word in words if number]
    return ", ".join(parts)


def _show_run(found: Gaps, run: _Run) -> None:
    counts = Counter(tick.outcome for tick in run.ticks)
    parts = [f"{counts[word]} {word}" for word in ("launched", "skipped", "failed") if counts[word]]
    click.echo(
        f"{counted(len(run.ticks), 'due time')}: {', '.join(parts) or 'launched meanwhile'}."
    )
    others = [tick for tick in run.ticks if tick.outcome != "launched"]
    if others:
        table = printing.table("due (UTC)", "outcome", "why", folding={"why"})
        for tick in others[:_SHOWN]:
            table.add_row(utc(tick.due_at), styled(tick.outcome), line(printing.why(tick)))
        printing.show(table)
        if len(others) > _SHOWN:
            click.echo(f"… and {len(others) - _SHOWN} more; `pgbeat history` shows them")


#: Of those that were not launched after all, so many are shown.
_SHOWN = 20


def _remark(target: Target, row: Schedule, run: _Run) -> None:
    if run.stopped:
        printing.note(f"it stopped after {counted(run.failures, 'failure')} in a row.")
    if run.interrupted:
        printing.note("it was interrupted; call it again, and it goes on.")
    if printing.is_local(row) and row.timezone is None and not target.has_app:
        printing.note("it names no time zone and takes the app's; without -A APP, UTC is assumed.")
