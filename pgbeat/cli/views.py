"""`pgbeat list`, `status` and `next`: schedules to look at."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import click
from rich.console import RenderableType
from rich.text import Text

from pgbeat import db, entries, schedules, ticks
from pgbeat.cli import printing
from pgbeat.cli.printing import line, styled, when
from pgbeat.cli.target import Target, pass_target
from pgbeat.schedules import Schedule
from pgbeat.timetables import Timetable, zone

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command("list")
@click.option("--enabled/--disabled", default=None, help="Only those that are, or are not.")
@json_option
@pass_target
def list_command(target: Target, enabled: bool | None, as_json: bool) -> None:
    """List the schedules: when they are due, in what state they are, how they came out last."""
    with target.transaction() as connection:
        now = db.now(connection)
        rows = schedules.listing(connection, enabled=enabled)
    if as_json:
        printing.echo_json([printing.row_json(row) for row in rows])
        return
    if not rows:
        kind = {None: "", True: "enabled ", False: "disabled "}[enabled]
        more = "; `pgbeat add --help` says how to add one" if enabled is None else ""
        click.echo(f"There are no {kind}schedules{more}.")
        return
    wide = printing.is_wide()
    columns = ["schedule", "timetable", "state", "next", "last", *(["task"] if wide else [])]
    long = {"schedule"} if any(len(row.name) > _LONG for row in rows) else set()
    table = printing.table(*columns, folding={"timetable", "task"} | long)
    for row in rows:
        cells: list[RenderableType] = [
            line(row.name),
            printing.timetable(row),
            styled(printing.state(row)),
            _next(row, now),
            styled(_last(row, now)),
        ]
        table.add_row(*cells, *([_what(row)] if wide else []))
    printing.show(table)


#: Names up to here are kept on one line.
_LONG = 30


def _next(row: Schedule, now: datetime) -> str:
    if not row.enabled or row.paused_at is not None:
        return "-"
    if row.next_run is None:
        return "new"
    late = now - row.next_run
    return f"due for {printing.span(late)}" if late >= timedelta(0) else f"in {printing.span(late)}"


def _last(row: Schedule, now: datetime) -> str:
    """The last outcome: each leaves its mark at the time of the run."""
    if row.last_run is None:
        return "never"
    outcome = {row.last_failure: "failed", row.last_success: "launched"}.get(row.last_run)
    return f"{outcome or 'skipped'} {printing.span(now - row.last_run, units=1)} ago"


def _what(row: Schedule) -> str:
    if row.launcher == "GenericLauncher":
        return line(row.task)
    return f"{line(row.task)} by {row.launcher}" if row.task else f"by {row.launcher}"


@click.command("status")
@click.argument("name")
@json_option
@pass_target
def status_command(target: Target, name: str, as_json: bool) -> None:
    """Show all about a schedule."""
    with target.transaction() as connection:
        now = db.now(connection)
        row = schedules.get(connection, name)
        history = ticks.history(connection, row.id, limit=1)
    last = history[0] if history else None
    if as_json:
        printing.echo_json(printing.row_json(row) | {"last_tick": last})
        return
    click.secho(line(row.name), bold=True, nl=False)
    click.echo(f" ({printing.state(row)})")
    printing.show(printing.facts(_facts(target, row, last, now)))


def _facts(
    target: Target, row: Schedule, last: ticks.Entry | None, now: datetime
) -> list[tuple[str, str | Text | None]]:
    condition = None if row.condition_sql is None else line(row.condition_sql)
    retries = (
        f"{row.retry_count} of {row.max_retries} used; {printing.span(row.retry_base, 4)} "
        f"doubled each time, {printing.span(row.retry_cap, 4)} at most"
    )
    return [
        ("disabled", None if row.enabled else Text(line(row.disabled_reason), style="red")),
        ("paused", None if row.paused_at is None else f"since {when(row.paused_at, now)}"),
        ("timetable", printing.timetable(row, target.timezone)),
        ("next run", when(row.next_run, now) if row.enabled and not row.paused_at else None),
        ("task", row.task and line(row.task)),
        ("launcher", row.launcher),
        ("condition", condition),
        ("args", "in the app's code" if row.args is None else printing.compact(row.args)),
        ("kwargs", printing.compact(row.kwargs)),
        ("options", printing.compact(row.options)),
        ("queue", row.queue),
        ("last tick", None if last is None else Text.assemble(*_tick(last, now))),
        ("last run", when(row.last_run, now)),
        ("last success", when(row.last_success, now)),
        ("last failure", when(row.last_failure, now)),
        ("last error", row.last_error and line(row.last_error)),
        ("retries", retries),
        ("cursor", None if row.cursor is None else printing.compact(row.cursor)),
        ("owner", row.owner and line(row.owner)),
        ("source", row.source),
        ("created", when(row.created_at, now)),
        ("changed", when(row.updated_at, now)),
    ]


def _tick(tick: ticks.Entry, now: datetime) -> Iterator[str | Text]:
    yield styled(tick.outcome)
    yield f" {printing.relative(tick.decided_at, now)}"
    if tick.job_id is not None:
        yield f", job {tick.job_id}"
        if tick.job_state is not None:
            yield f" is {tick.job_state}"
    if tick.reason or tick.error:
        yield f": {line(tick.reason or tick.error)}"


@click.command("next")
@click.argument("name")
@click.option("-n", "count", type=click.IntRange(1, 10_000), default=10, help="How many times.")
@json_option
@pass_target
def next_command(target: Target, name: str, count: int, as_json: bool) -> None:
    """Show when a schedule is due next, in its own time zone and in UTC.

    A schedule whose timetable is in the app's code needs the app.
    """
    with target.transaction() as connection:
        now = db.now(connection)
        row = schedules.get(connection, name)
    timetable = _timetable(target, row)
    local = zone(row.timezone or target.timezone)
    times = list(_times(row, timetable, now, count))
    if as_json:
        found = [{"utc": moment, "local": moment.astimezone(local).isoformat()} for moment in times]
        printing.echo_json({"schedule": row.name, "timezone": local.key, "times": found})
    else:
        zones = [local] if local.key == "UTC" else [local, UTC]
        table = printing.table(*map(str, zones), "")
        for moment in times:
            cells = [f"{moment.astimezone(own):%a %Y-%m-%d %H:%M:%S %Z}" for own in zones]
            table.add_row(*cells, printing.relative(moment, now))
        printing.show(table)
    _remark(target, row, times, count)


def _timetable(target: Target, row: Schedule) -> Timetable:
    own = row.timetable(target.timezone)
    if own is not None:
        return own
    app = target.require_app(f"schedule {row.name!r} has its timetable in the app's code")
    return entries.code_timetable(app, row, entries.built_in(app))


def _times(row: Schedule, timetable: Timetable, now: datetime, count: int) -> Iterator[datetime]:
    is_on = row.enabled and row.paused_at is None
    moment = (row.next_run if is_on else None) or timetable.next_after(now)
    while moment is not None and count > 0:
        yield moment.astimezone(UTC)
        count -= 1
        moment = timetable.next_after(max(moment, now))


def _remark(target: Target, row: Schedule, times: list[datetime], count: int) -> None:
    if not row.enabled:
        printing.note(f"it is disabled ({line(row.disabled_reason)}); none of this will come.")
    elif row.paused_at is not None:
        printing.note("it is paused; none of this comes before it is resumed.")
    elif row.retry_count:
        printing.note(f"the first is retry {row.retry_count} of {row.max_retries}.")
    if not times:
        printing.note("its timetable has no time left.")
    if row.cron is not None and row.timezone is None and not target.has_app:
        printing.note("it names no time zone and takes the app's; without -A APP, UTC is assumed.")
