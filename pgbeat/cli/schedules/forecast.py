"""`pgbeat forecast`: which schedules will be due, when, and how many at a time."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
from rich.text import Text

from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.failures import BadInput
from pgbeat.cli.terminal.numbers import RealRange
from pgbeat.cli.terminal.options import FLAG, MOMENT, in_zone, option, whole
from pgbeat.cli.terminal.printing import Cell, counted, line, span, utc
from pgbeat.cli.terminal.target import Target, on_target
from pgbeat.errors import InvalidInput
from pgbeat.schedules.forecast import Expected, Forecast, MinuteLoad, is_certain
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.stored_forecast import MOST_HOURS, StoredForecast, forecast_stored
from pgbeat.timetables import zone

#: The most schedules that a remark names.
_NAMED = 5


@click.command("forecast")
@click.argument("names", nargs=-1)
@option(
    "--hours",
    "N",
    "How far to look, up to a year.",
    default=24,
    type=RealRange(0, MOST_HOURS, min_open=True),
)
@option(
    "--from", MOMENT, "The start: 2026-12-24, 2026-12-24T09:00, …T09:00Z; by default now.", "start"
)
@option("--by-minute", FLAG, "Show how many are due in each minute.")
@option("--limit", whole(0, 1_000_000), "How many times to list; all are counted.", default=50)
@on_target
def forecast_command(
    target: Target, /, start: datetime | None, by_minute: bool, **options: Any
) -> None:
    """Show which schedules will be due, and when: all, or those named.

    Follows timetables, windows, jitter, calendars, catch-up, max_runs and min_interval. A question
    mark stands for the decision of a condition or a launcher. Times without an offset are in the
    app's zone.
    """
    if start is not None:
        start = in_zone(start, zone(target.timezone), "--from")
    with target.transaction() as connection:
        try:
            zones = target.timetable, target.timezone
            stored = forecast_stored(connection, target.namespace, *zones, start=start, **options)
        except InvalidInput as error:
            raise BadInput(f"--from: {error}") from None
    rows, forecast = stored.rows, stored.forecast
    if printing.is_json():
        minutes = {"minutes": forecast.minutes} if by_minute else {}
        printing.echo_json(stored.as_dict() | minutes)
    else:
        _show(stored, options["limit"], by_minute=by_minute)
    _remark(target, rows, forecast)


def _show(stored: StoredForecast, limit: int, *, by_minute: bool) -> None:
    rows, forecast = stored.rows, stored.forecast
    length = span(forecast.end - forecast.start)
    if not forecast.total and not forecast.after:
        click.echo(f"Nothing is due in {length}.")
        return
    if by_minute:
        _show_minutes(forecast)
    else:
        _show_times(stored, limit)
    names = len(rows) - sum(not row.enabled or row.paused_at is not None for row in rows)
    parts = [
        f"{number:,} {words}"
        for number, words in (
            (forecast.launches, "launched"),
            (forecast.uncertain, "uncertain"),
            (forecast.skipped, "skipped"),
        )
        if number
    ]
    click.echo(
        f"{forecast.total:,} due times in {length}, of {counted(names, 'schedule')}"
        + (f": {', '.join(parts)}." if parts else ".")
    )
    if (peak := forecast.peak) is not None:
        click.echo(f"The most in a minute: {_load(peak)}, at {_minute(peak)} UTC.")


def _show_times(stored: StoredForecast, limit: int) -> None:
    forecast = stored.forecast
    if not forecast.times and not forecast.after[:limit]:
        return
    rows: list[dict[str, Cell]] = [
        {"when (UTC)": utc(due.at), "schedule": due.schedule.name, "": _how(stored, due)}
        for due in forecast.times
    ]
    rows += [
        {"when (UTC)": printing.timetable(row), "schedule": row.name, "": "?"}
        for row in forecast.after[:limit]
    ]
    printing.show_table(rows, names={"schedule"}, folding={""})
    more = forecast.total - len(forecast.times) + max(0, len(forecast.after) - limit)
    if more:
        click.echo(f"… and {more:,} more (--limit)")
    click.echo()


def _how(stored: StoredForecast, due: Expected) -> Text:
    """Returns whether it is launched, its note, and its placeholders' values."""
    row = due.schedule
    if due.skip is not None:
        text = Text.assemble(("skipped", printing.STYLES["skipped"]), f": {line(due.skip)}")
    elif is_certain(row):
        text = Text()
    elif row.launcher != "GenericLauncher":
        text = Text(f"? by {row.launcher}")
    elif row.condition_sql is not None:
        text = Text("? on its condition")
    else:
        text = Text("? by the app's code")
    if due.note is not None:
        text.append(f"{'; ' if text else ''}{line(due.note)}")
    if due.skip is None and row.has_placeholders:
        arguments, error = stored.call(due)
        if arguments is None:
            remark = Text.assemble(("fails", printing.STYLES["failed"]), f": {line(error)}")
        else:
            shown = [printing.compact(value) for value in arguments if value]
            remark = Text(f"with {line(', '.join(shown))}")
        text.append(Text.assemble("; " if text else "", remark))
    return text


def _show_minutes(forecast: Forecast) -> None:
    rows: list[dict[str, Cell]] = [
        {"minute (UTC)": _minute(load), "launched": load.launches, "uncertain": load.uncertain}
        for load in forecast.minutes
    ]
    printing.show_table(rows)
    click.echo()


def _minute(load: MinuteLoad) -> str:
    return utc(load.minute)[:16]


def _load(load: MinuteLoad) -> str:
    uncertain = f"{load.uncertain:,} of them uncertain" if load.uncertain else ""
    total = f"{load.launches + load.uncertain:,}"
    return f"{total}, {uncertain}" if uncertain else total


def _remark(target: Target, rows: Sequence[Schedule], forecast: Forecast) -> None:
    disabled = [row.name for row in rows if not row.enabled]
    paused = [row.name for row in rows if row.enabled and row.paused_at is not None]
    left_out = [
        f"{len(names)} {word} ({printing.shortened(names, _NAMED)})"
        for names, word in ((disabled, "disabled"), (paused, "paused"))
        if names
    ]
    if left_out:
        printing.note(f"left out: {' and '.join(left_out)}.")
    for name, why in list(forecast.unknown.items())[:_NAMED]:
        printing.note(f"schedule {line(name)!r} is left out: {line(why)}")
    if len(forecast.unknown) > _NAMED:
        printing.note(f"so are {len(forecast.unknown) - _NAMED} more; --json names them.")
    if not target.has_app and any(
        printing.is_local(row) and row.timezone is None for row in rows if row.enabled
    ):
        printing.note(
            "schedules that name no time zone take the app's; without -A APP, UTC is assumed."
        )
