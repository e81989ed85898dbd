"""`pgbeat backfill`: launch due times of the past that were missed."""

import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from threading import Event
from types import FrameType
from typing import Any

import click

from pgbeat.beat.verbs import control, missed
from pgbeat.beat.verbs.control import BackfillRun
from pgbeat.beat.verbs.missed import Missed
from pgbeat.cli import INTERRUPTED
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.asking import changing
from pgbeat.cli.terminal.failures import FAILED, SKIPPED
from pgbeat.cli.terminal.options import MOMENT, in_zone, option
from pgbeat.cli.terminal.printing import Cell, counted, styled, utc
from pgbeat.cli.terminal.target import Target
from pgbeat.schedules import model as schedules
from pgbeat.schedules.model import Schedule
from pgbeat.timetables import zone
from pgbeat.views import schedules as views


@click.command("backfill")
@click.argument("name")
@option(
    "--from",
    MOMENT,
    "The first due time: 2026-12-24, 2026-12-24T09:00, …T09:00Z.",
    "start",
    required=True,
)
@option("--to", MOMENT, "The last; by default now.", "end")
@option("--limit", click.IntRange(1), "Refuse to launch more.", default=1000)
@changing
def backfill_command(
    target: Target, name: str, start: datetime, end: datetime | None, limit: int, dry_run: bool
) -> None:
    """Launch the due times that a schedule missed.

    These are the due times that no tick launched, oldest first. Each becomes a tick.
    Conditions are checked as things are now; overlap and min_interval don't count, and the
    schedule's run state stays. Times without an offset are in its zone. After an interruption
    (Ctrl-C), call it again to continue. Needs the app.

    Its JSON has `schedule`, `from`, `to`, `launched_before`, `excluded`, `pending`, `times`,
    `dry_run`, `interrupted` and `ticks`.
    """
    with target.reading() as (connection, now):
        row = schedules.get(connection, name, namespace=target.namespace)
        local = zone(row.timezone or target.timezone)
        first = in_zone(start, local, "--from")
        last = now if end is None else in_zone(end, local, "--to")
        missed.check_period(first, last, now)
        period = missed.find(connection, row, first, last, timezone=target.timezone, limit=limit)
    done, was_interrupted = BackfillRun(), False
    if period.times and not dry_run:
        done, was_interrupted = _launch(target, name, period, quiet=printing.is_json())
    if printing.is_json():
        values = _json(row, first, last, period, done)
        flags = {"dry_run": dry_run, "interrupted": was_interrupted}
        printing.echo_json(values | flags)
    elif dry_run or not period.times:
        _show_missed(row, period, local.key)
    else:
        _show_done(done)
    if was_interrupted:
        printing.note("it was interrupted; call it again to continue.")
    elif done.remaining:
        printing.note(f"it stopped after {counted(done.failures, 'failure')} in a row.")
    if printing.is_local(row):
        target.note_zone(row)
    raise click.exceptions.Exit(INTERRUPTED if was_interrupted else _status(done))


def _launch(target: Target, name: str, period: Missed, *, quiet: bool) -> tuple[BackfillRun, bool]:
    """Returns what was decided, and whether Ctrl-C ended it early."""
    target.require_app("a backfill needs the app, whose launchers and tasks it runs")
    shows = sys.stderr.isatty() and not quiet
    with target.work() as unit, _interruptible() as interrupted:

        def is_over(done: BackfillRun) -> bool:
            if shows:
                at = utc(done.ticks[-1].due_at)
                click.echo(f"\r{len(done.ticks)} of {len(period.times)}: {at}", err=True, nl=False)
            return interrupted.is_set()

        done = control.backfill(unit, name, period.times, job_source="user_cli", is_over=is_over)
        if shows:
            click.echo(err=True)
        return done, interrupted.is_set() and done.remaining > 0


@contextmanager
def _interruptible() -> Iterator[Event]:
    """Lets Ctrl-C set the event, so the current tick is finished; a second one interrupts."""
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


def _status(done: BackfillRun) -> int:
    outcomes = {tick.outcome for tick in done.ticks}
    if "failed" in outcomes:
        return FAILED
    return SKIPPED if outcomes == {"skipped"} else 0


def _json(
    row: Schedule, start: datetime, end: datetime, period: Missed, done: BackfillRun
) -> dict[str, Any]:
    return {
        "schedule": row.name,
        "from": start,
        "to": end,
        "launched_before": period.launched,
        "excluded": period.excluded,
        "pending": period.pending,
        "times": period.times,
        "ticks": [views.made(tick) for tick in done.ticks],
    }


def _show_missed(row: Schedule, period: Missed, zone_name: str) -> None:
    rest = _rest(period)
    if not period.times:
        click.echo(f"There is nothing to launch{': ' + rest if rest else ''}.")
        return
    number = counted(len(period.times), "due time")
    click.echo(f"Would launch {row.name!r} for {number}{', but not for ' + rest if rest else ''}.")
    local = zone(zone_name)
    printing.show_table([printing.local_times(moment, local) for moment in period.times])


def _rest(period: Missed) -> str:
    """Returns how many due times are not launched, and why."""
    words = (
        (period.launched, "launched before"),
        (period.excluded, "left out by its calendar"),
        (period.pending, "for the beat to decide"),
    )
    parts = [f"{number} {word}" for number, word in words if number]
    return ", ".join(parts)


def _show_done(done: BackfillRun) -> None:
    counts = Counter(tick.outcome for tick in done.ticks)
    parts = [f"{counts[word]} {word}" for word in ("launched", "skipped", "failed") if counts[word]]
    click.echo(
        f"{counted(len(done.ticks), 'due time')}: {', '.join(parts) or 'launched meanwhile'}."
    )
    others = [tick for tick in done.ticks if tick.outcome != "launched"]
    if others:
        rows: list[dict[str, Cell]] = [
            {
                "due (UTC)": utc(tick.due_at),
                "outcome": styled(tick.outcome),
                "why": printing.why(tick),
            }
            for tick in others[:_SHOWN]
        ]
        printing.show_table(rows, folding={"why"})
        if len(others) > _SHOWN:
            click.echo(f"… and {len(others) - _SHOWN} more; `pgbeat history` shows them")


#: The most due times without a launch that are shown.
_SHOWN = 20
