"""`pgbeat list`, `status` and `next`: schedules to look at."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice

import click
from rich.text import Text

from pgbeat.cli.jobs.job_options import in_words
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.options import label_filter, option
from pgbeat.cli.terminal.printing import Cell, compact, line, styled, when
from pgbeat.cli.terminal.tables import glued
from pgbeat.cli.terminal.target import Target, on_named, on_target
from pgbeat.monitoring import beats, schedule_health, statistics
from pgbeat.monitoring.schedule_health import Health
from pgbeat.names import NAMESPACE
from pgbeat.schedules import model as schedules
from pgbeat.schedules import ticks
from pgbeat.schedules.forecast import of_schedule
from pgbeat.schedules.model import Schedule
from pgbeat.timetables import zone
from pgbeat.views import schedules as views
from pgbeat.webhooks import check_ins
from pgbeat.webhooks.check_ins import CheckIn

#: The most failing schedules that are explained below the list.
_TROUBLES = 5


@click.command("list")
@click.option("--enabled/--disabled", default=None, help="Only enabled or disabled ones.")
@label_filter
@option("--sort", click.Choice(["name", "health"]), "By health: worst first.", default="name")
@on_target
def list_command(
    target: Target, enabled: bool | None, labels: dict[str, str] | None, sort: str
) -> None:
    """List the schedules: when they are due, their state, and the health of their jobs."""
    with target.listing() as (connection, now):
        rows = schedules.listing(
            connection, enabled=enabled, labels=labels, namespace=target.namespace
        )
        patience = beats.patience(target.settings)
        healths = schedule_health.of_schedules(connection, rows, patience)
    if sort == "health":
        rows.sort(key=lambda row: healths[row.id].rank)
    kind = {None: "", True: "enabled ", False: "disabled "}[enabled]
    more = "; `pgbeat add --help` says how to add one" if enabled is None else ""
    is_wide = printing.is_wide(150) or printing.fits(
        [_cells(row, healths[row.id], now, is_wide=True) for row in rows]
    )
    printing.show_listing(
        rows,
        json_of=lambda row: views.with_health(row, healths[row.id]),
        cells_of=lambda row: _cells(row, healths[row.id], now, is_wide=is_wide),
        names={"schedule", "timetable", "task"},
        none=f"There are no {kind}schedules{' with such labels' if labels else more}.",
    )
    if not printing.is_json():
        _show_troubles([(row, healths[row.id]) for row in rows])


def _cells(row: Schedule, health: Health, now: datetime, *, is_wide: bool) -> dict[str, Cell]:
    state, health_text = styled(printing.state(row)), printing.health(health)
    last = _last(row, now)
    cells: dict[str, Cell] = {
        "schedule": glued(line(row.name)),
        "timetable": _timetable(row),
        "state": state,
        "health": health_text,
        "next": _next(row, now, is_wide=is_wide),
        "last": styled(last),
    }
    if is_wide:
        return cells | {"task": _what(row)}
    del cells["health"]  # unless there is something wrong
    is_worse = row.state == "active" and health.severity != "ok"
    return cells | {
        "state": health_text if is_worse else state,
        "last": styled(last.removesuffix(" ago")),
    }


def _timetable(row: Schedule) -> Text:
    """Returns the timetable, and its zone, which may go on the next line."""
    text, suffix = printing.timetable(row), f" ({row.timezone})"
    return glued(text.removesuffix(suffix)) + Text(suffix if text.endswith(suffix) else "")


def _show_troubles(rows: list[tuple[Schedule, Health]]) -> None:
    bad = [(row, health) for row, health in rows if health.severity == "fail"]
    if bad:
        click.echo()
    for row, health in bad[:_TROUBLES]:
        printing.show(Text(f"{line(row.name)}: {line(health.summary)}"))
    if len(bad) > _TROUBLES:
        click.echo(f"… and {len(bad) - _TROUBLES} more; `pgbeat explain NAME` says why.")


def _next(row: Schedule, now: datetime, *, is_wide: bool) -> str:
    if not row.enabled or row.paused_at is not None:
        return "-"
    if row.waiting_for is not None:
        return "after its job" if is_wide else "after job"
    if row.next_run is None:
        return "new" if row.after is None else "-"
    late = now - row.next_run
    if late < timedelta(0):
        return f"in {printing.span(late, 2 if is_wide else 1)}"
    return f"due for {printing.span(late)}" if is_wide else "due now"


def _last(row: Schedule, now: datetime) -> str:
    """Returns the last outcome, which is the one whose time is that of the last run."""
    if row.last_run is None:
        return "never"
    outcome = {row.last_failure: "failed", row.last_success: "launched"}.get(row.last_run)
    return f"{outcome or 'skipped'} {printing.span(now - row.last_run, units=1)} ago"


def _what(row: Schedule) -> str:
    launcher = "" if row.launcher == "GenericLauncher" else f" by {row.launcher}"
    lane = f" in lane {row.job_policy['lane']}" if row.job_policy.get("lane") else ""
    return f"{row.task or ''}{launcher}{lane}".lstrip()


@click.command("status")
@on_named
def status_command(target: Target, name: str) -> None:
    """Show all about a schedule."""
    with target.reading() as (connection, now):
        row = schedules.get(connection, name, namespace=target.namespace)
        history = ticks.history(connection, row.id, limit=1)
        last = history[0] if history else None
        runs = statistics.of_schedule(connection, row.id)
        check_in = check_ins.last(connection, row.id)
        patience = beats.patience(target.settings)
        health = schedule_health.of_schedule(connection, row, patience)
        view = views.detail(connection, row, health, last)
    if printing.is_json():
        printing.echo_json(view)
        return
    click.secho(line(row.name), bold=True, nl=False)
    click.echo(f" ({printing.state(row)})")
    printing.show_facts(
        None,
        ("health", printing.health(health, in_full=True)),
        ("description", row.description),
        *_facts(target, row, last, now),
        ("runs", _runs(runs)),
        ("check-ins", row.check_in_url),
        ("last check-in", check_in and _check_in(check_in, now)),
    )


def _check_in(check_in: CheckIn, now: datetime) -> Text:
    error = f": {line(check_in.error)}" if check_in.error else ""
    text = f"{check_in.words}, {when(check_in.created_at, now)}{error}"
    return Text(text, "red" if error else "")


def _facts(
    target: Target, row: Schedule, last: ticks.Entry | None, now: datetime
) -> list[tuple[str, Cell]]:
    reason = line(row.disabled_reason or "no reason given")
    launches = str(row.run_count or "")
    return [
        ("completed", row.completed),
        ("disabled", Text(reason, "red") if printing.state(row) == "disabled" else None),
        ("tried again", when(row.probe_at, now)),
        ("paused", _paused(row, now)),
        ("timetable", printing.timetable(row, target.timezone)),
        ("window", printing.window(row, now)),
        ("calendar", row.calendar),
        ("jitter", f"up to {printing.span(row.jitter, 4)}" if row.jitter else None),
        ("next run", _next_run(row, now) if row.enabled and not row.paused_at else None),
        ("waits for", None if row.waiting_for is None else f"the end of job {row.waiting_for}"),
        ("launches", launches if row.max_runs is None else f"{row.run_count} of {row.max_runs}"),
        ("catch up", _catch_up(row)),
        ("overlap", None if row.overlap == "allow" else row.overlap),
        ("spacing", None if row.min_interval is None else printing.span(row.min_interval, 4)),
        ("task", row.task),
        ("launcher", row.launcher),
        ("condition", row.condition_sql),
        ("args", "in the app's code" if row.args is None else compact(row.args)),
        ("kwargs", compact(row.kwargs)),
        ("options", compact(row.options)),
        ("queue", row.queue),
        ("jobs", in_words(row.job_policy)),
        ("last tick", None if last is None else Text.assemble(*_tick(last, now))),
        ("last run", when(row.last_run, now)),
        ("last launch", when(row.last_success, now)),
        ("last failure", when(row.last_failure, now)),
        ("last error", row.last_error),
        ("retries", _retries(row)),
        ("cursor", None if row.cursor is None else compact(row.cursor)),
        ("pauses after", _pauses_after(row)),
        ("fresh within", printing.span(row.fresh_within, 4) if row.fresh_within else None),
        ("owner", row.owner),
        ("labels", printing.labels(row.labels)),
        ("metadata", compact(row.metadata)),
        ("source", f"{row.source} of app {row.app}" if row.app else row.source),
        ("namespace", None if row.namespace == NAMESPACE else row.namespace),
        ("created", when(row.created_at, now)),
        ("changed", when(row.updated_at, now)),
    ]


def _paused(row: Schedule, now: datetime) -> str | None:
    if row.paused_at is None:
        return None
    why = "" if row.paused_reason is None else f": {row.paused_reason}"
    return f"since {when(row.paused_at, now)}{why}"


def _pauses_after(row: Schedule) -> str | None:
    number = row.pause_after_failures
    return None if number is None else f"{printing.counted(number, 'failed job')} in a row"


def _next_run(row: Schedule, now: datetime) -> str | None:
    text = when(row.next_run, now)
    nominal = "" if row.due_at is None else f"; by its timetable {printing.utc(row.due_at)} UTC"
    return text and f"{text}{nominal}"


def _catch_up(row: Schedule) -> str | None:
    """Returns which missed times are made up for, unless it is simply the latest."""
    if row.catch_up == "latest" and row.grace is None:
        return None
    most = f", {row.catch_up_limit} at most" if row.catch_up == "all" else ""
    grace = "" if row.grace is None else f", {printing.span(row.grace, 4)} late at most"
    return f"{row.catch_up}{most}{grace}"


def _retries(row: Schedule) -> str:
    growth = {1.0: "", 2.0: "doubled "}.get(row.retry_factor, f"times {row.retry_factor:g} ")
    probe = ""
    if row.probe_after is not None:
        probe = f"; once disabled, it is tried again after {printing.span(row.probe_after, 4)}"
    return (
        f"{row.retry_count} of {row.max_retries} used; {printing.span(row.retry_base, 4)} "
        f"{growth}each time, {printing.span(row.retry_cap, 4)} at most{probe}"
    )


def _runs(figures: statistics.ExecutionStatistics) -> str | None:
    """Returns the outcomes and durations of its jobs' executions, on one line."""
    if not figures.total:
        return None
    words = [printing.counted(figures.total, "run" if figures.is_whole else "newest run")]
    counts = (figures.running, figures.failed, figures.cancelled, figures.skipped)
    names = ("running", "failed", "cancelled", "skipped")
    words += [f"{count} {name}" for count, name in zip(counts, names, strict=True) if count]
    if figures.success_rate is not None:
        words.append(f"success rate {figures.success_rate:.0%}")
    if figures.average_ms is not None and figures.p95_ms is not None:
        average, most = (
            printing.span(timedelta(milliseconds=ms)) for ms in (figures.average_ms, figures.p95_ms)
        )
        words.append(f"{average} on average, 95% within {most}")
    return "; ".join(words)


def _tick(tick: ticks.Entry, now: datetime) -> Iterator[str | Text]:
    yield styled(tick.outcome)
    yield f" {printing.relative(tick.decided_at, now)}"
    if len(tick.jobs) > 1:
        yield f", {ticks.summary(tick.jobs)}"
    elif tick.job_id is not None:
        yield f", job {tick.job_id}"
        if tick.job_state is not None:
            yield f" is {tick.job_state}"
    why = printing.why(tick)
    if why:
        yield f": {why}"


@click.command("next")
@click.argument("name")
@click.option(
    "-n", "--limit", "count", type=click.IntRange(1, 10_000), default=10, help="How many times."
)
@on_target
def next_command(target: Target, name: str, count: int) -> None:
    """Show when a schedule is due next, in its own time zone and in UTC.

    If its timetable is in the app's code, it needs the app.
    """
    with target.reading() as (connection, now):
        row = schedules.get(connection, name, namespace=target.namespace)
        start = row
        if not row.enabled or row.paused_at is not None:  # resumed, it would start over
            start = row._replace(next_run=None, due_at=None, retry_count=0, waiting_for=None)
        timetable = target.timetable(row)
        times = list(islice(of_schedule(connection, start, timetable, now, target.timezone), count))
    local = zone(row.timezone or target.timezone)
    if printing.is_json():
        upcoming = [views.upcoming(due, now) for due in times]
        printing.echo_json({"schedule": row.name, "timezone": local.key, "times": upcoming})
    elif times:
        cells: list[dict[str, Cell]] = [
            printing.local_times(due.at, local) | {"": printing.relative(due.at, now)}
            for due in times
        ]
        if any(due.skip for due in times):
            cells = [row | {"skipped": due.skip} for row, due in zip(cells, times, strict=True)]
        printing.show_table(cells, folding={"skipped"})
    _remark(target, row, is_over=not times)


def _remark(target: Target, row: Schedule, *, is_over: bool) -> None:
    if not row.enabled:
        none = "; none of this will come" if not is_over else ""
        printing.note(f"it is {row.state} ({line(row.disabled_reason)}){none}.")
    elif row.paused_at is not None:
        printing.note("it is paused; none of this comes before it is resumed.")
    elif row.retry_count:
        printing.note(f"the first is retry {row.retry_count} of {row.max_retries}.")
    elif row.waiting_for is not None:
        printing.note(f"the first waits for the end of job {row.waiting_for}.")
    if row.after is not None:
        printing.note(f"it comes {printing.timetable(row)}, whenever that is.")
    elif is_over and row.completed is None:
        printing.note("its timetable has no time left.")
    if printing.is_local(row):
        target.note_zone(row)
