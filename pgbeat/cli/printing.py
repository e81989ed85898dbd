"""How things look: tables, times, JSON."""

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any, TypeVar
from uuid import UUID

import click
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pgbeat.cli import TARGET
from pgbeat.monitoring.schedule_health import Health
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.ticks import Entry, Tick
from pgbeat.timetables import span as span

Row = TypeVar("Row")

STYLES = {
    "launched": "green",
    "skipped": "yellow",
    "failed": "red",
    "completed": "green",
    "delivered": "green",
    "running": "cyan",
    "waiting": "cyan",
    "scheduled": "cyan",
    "cancelled": "yellow",
    "lost": "red",
    "pending": "cyan",
    "failing": "red",
    "active": "green",
    "paused": "yellow",
    "disabled": "red",
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
}
#: Columns of the terminal from which tables show all that they have.
WIDE = 110


def _console(written: StringIO) -> Console:
    """Like standard output, but to be written later. Where that is no terminal, lines are as long
    as they need to be."""
    target = click.get_current_context().meta.get(TARGET)
    is_terminal = sys.stdout.isatty()
    return Console(
        file=written,
        force_terminal=is_terminal,
        width=None if is_terminal else 10_000,
        no_color=getattr(target, "no_color", None) or None,
        highlight=False,
        markup=False,
        emoji=False,
    )


def show(*parts: RenderableType) -> None:
    """Prints, without blanks at the ends of lines."""
    written = StringIO()
    console = _console(written)
    for part in parts:
        console.print(part)
    for row in written.getvalue().splitlines():
        click.echo(row.rstrip(), color=console.is_terminal or None)


def is_wide(columns: int = WIDE) -> bool:
    """Whether there is room for all columns."""
    return _console(StringIO()).width >= columns


def table(*columns: str, folding: Collection[str] = (), numbers: Collection[str] = ()) -> Table:
    """A table without lines; the `folding` columns give way where there is too little room, the
    `numbers` are flush right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(
            column,
            no_wrap=column not in folding,
            overflow="fold",
            justify="right" if column in numbers else "left",
        )
    return made


def listing(
    rows: Sequence[Row],
    *,
    as_json: bool,
    json_of: Callable[[Row], Any],
    table_of: Callable[[], Table],
    none: str,
) -> None:
    """Prints rows: as JSON, as a table, or what is to be said where there are `none`."""
    if as_json:
        echo_json([json_of(row) for row in rows])
    elif rows:
        show(table_of())
    else:
        click.echo(none)


def named(names: Sequence[str], most: int = 10) -> str:
    """Names, so many of them; `none` where there are none."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(line, names[:most])) + more or "none"


def facts(pairs: Sequence[tuple[str, RenderableType | None]]) -> Table:
    """Names and values beneath each other; those without a value are left out."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None and value != "":
            made.add_row(f"  {name}", value)
    return made


def line(value: object) -> str:
    """A value from the database on one line, with nothing in it that would move the cursor."""
    words = " ".join(str(value).split())
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words)


def counted(number: int, noun: str) -> str:
    """How many there are of what: `1 message`, `2 messages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def styled(word: str) -> Text:
    """An outcome, a state or a result in its colour."""
    return Text(word, style=STYLES.get(word.split(" ")[0], ""))


def utc(moment: datetime | None) -> str:
    """A time in UTC, to the second."""
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def relative(moment: datetime, now: datetime) -> str:
    """How far away a time is."""
    return f"in {span(moment - now)}" if moment > now else f"{span(now - moment)} ago"


def when(moment: datetime | None, now: datetime) -> str | None:
    """A time in UTC and how far away it is."""
    return None if moment is None else f"{utc(moment)} UTC, {relative(moment, now)}"


#: What of another schedule's job a schedule comes after, in words; nothing for the usual.
_AFTER = {"completed": "", "failed": " (failed)", "finished": " (however it ends)"}


def timetable(row: Schedule, default_zone: str | None = None) -> str:
    """When a schedule is due, as its row says it."""
    text = "by the app's code"
    if row.cron is not None:
        text = row.cron
    elif row.every is not None:
        text = f"every {span(row.every, units=4)}"
    elif row.once_at is not None:
        text = f"once, {utc(row.once_at)} UTC"
    elif row.solar is not None:
        event, *place = row.solar.split()
        text = f"{event.replace('_', ' ')} at {', '.join(place)}"
    elif row.rrule is not None:
        text = line(row.rrule)
    elif row.after is not None:
        text = f"after {line(row.after)}{_AFTER.get(row.after_outcome, '')}"
    zone = row.timezone or default_zone
    return f"{text} ({zone})" if is_local(row) and zone else text


def is_local(row: Schedule) -> bool:
    """Whether the clock of a zone says when it is due."""
    is_days = row.every is not None and not row.every % timedelta(days=1)
    return row.cron is not None or row.rrule is not None or is_days


def state(row: Schedule) -> str:
    """Whether a schedule is in service, and how often it failed in a row."""
    is_retrying = row.state == "retrying"
    return f"retry {row.retry_count}/{row.max_retries}" if is_retrying else row.state


#: How each severity looks.
_SEVERITIES = {"ok": "green", "warn": "yellow", "fail": "red"}


def health(found: Health, *, in_full: bool = False) -> Text:
    """A schedule's health in a word or two, or in a sentence."""
    plain = found.code in ("new", "no_outcome")
    said = line(found.summary) if in_full else found.short
    return Text(said, style="" if plain else _SEVERITIES[found.severity])


def labels(found: Mapping[str, str]) -> str:
    """Labels on one line."""
    return ", ".join(f"{line(name)}={line(value)}" for name, value in sorted(found.items()))


def why(tick: Tick | Entry) -> str:
    """What a tick says for itself: a reason or an error, and what else it accounts for."""
    return "; ".join(line(text) for text in (tick.reason or tick.error, tick.note) if text)


def note(message: str) -> None:
    """A remark beside the result, on standard error."""
    click.echo(f"Note: {message}", err=True)


def result(value: Any, sentence: str, *, as_json: bool) -> None:
    """Prints what a command that changes something did: the row as JSON, or a sentence."""
    if as_json:
        echo_json(value)
    else:
        click.echo(sentence)


def echo_json(value: Any) -> None:
    """JSON with times in ISO 8601 (UTC) and lengths of time in seconds."""
    click.echo(json.dumps(value, default=_plain, indent=2, ensure_ascii=False))


def json_line(value: Any) -> str:
    """The same on one line."""
    return json.dumps(value, default=_plain, ensure_ascii=False)


def row_json(row: Schedule) -> dict[str, Any]:
    """A schedule's columns."""
    return {key: value for key, value in row._asdict().items() if key != "version"}


def tick_json(tick: Tick) -> dict[str, Any]:
    """Returns a decision's columns, with the ids of all its jobs as `job_ids`."""
    columns = {key: value for key, value in tick._asdict().items() if key != "more_job_ids"}
    return columns | {"job_ids": tick.job_ids}


def compact(value: Any) -> str:
    """JSON on one line; nothing for what is empty."""
    return json.dumps(value, default=_plain, ensure_ascii=False) if value else ""


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return int(seconds) if seconds.is_integer() else seconds
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
