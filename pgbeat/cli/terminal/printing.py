"""Prints results: tables, facts, sentences and JSON."""

import json
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import click
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pgbeat.access import audit
from pgbeat.cli import AS_JSON, TARGET
from pgbeat.cli.terminal import tables
from pgbeat.monitoring.schedule_health import Health
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.ticks import Entry, Tick
from pgbeat.schedules.timetable_words import upstreams_of
from pgbeat.timetables import cron_on_one_line
from pgbeat.timetables import relative as relative
from pgbeat.timetables import span as span

Row = TypeVar("Row")
#: Characters of a value in a table.
_MOST = 200
#: What a table or a fact shows. A string is printed on one line, a `Text` as it is.
Cell = str | int | UUID | Text | None

STYLES = {
    "launched": "green",
    "skipped": "yellow",
    "failed": "red",
    "completed": "green",
    "delivered": "green",
    "running": "cyan",
    "waiting": "cyan",
    "sleeping": "cyan",
    "done": "green",
    "scheduled": "cyan",
    "snoozed": "cyan",
    "cancelled": "yellow",
    "lost": "red",
    "drained": "green",
    "abandoned": "red",
    "pending": "cyan",
    "failing": "red",
    "active": "green",
    "paused": "yellow",
    "disabled": "red",
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
    "unknown": "yellow",
}


def _note_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.meta.get(AS_JSON):
        ctx.meta[AS_JSON] = sys.stdout
        # What the app, launchers and tasks print must not come between the JSON.
        ctx.find_root().with_resource(redirect_stdout(sys.stderr))


#: Makes a command print JSON, and its errors too; `is_json` says whether it was given.
json_option = click.option(
    "--json",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_note_json,
    help="Print JSON.",
)


def is_json() -> bool:
    """Returns whether the command was called with `--json`."""
    return bool(click.get_current_context().meta.get(AS_JSON))


def result(value: Any, sentence: str) -> None:
    """Prints a command's result: the changed row as JSON, or a sentence."""
    if is_json():
        echo_json(value)
    else:
        click.echo(harmless(sentence))


def note(message: str) -> None:
    """Prints a remark on standard error."""
    click.echo(f"Note: {harmless(message)}", err=True)


def echo_json(value: Any, indent: int | None = 2) -> None:
    """Prints JSON: named tuples as objects, times in ISO 8601 (UTC), lengths of time in seconds."""
    click.echo(json_line(value, indent), file=click.get_current_context().meta.get(AS_JSON))


def json_line(value: Any, indent: int | None = None) -> str:
    """Returns the same JSON, without `indent` on one line."""
    written = json.dumps(_named(value), default=_plain, indent=indent, ensure_ascii=False)
    # JSON admits these control characters in texts.
    return re.sub("[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", written)


def _named(value: Any) -> Any:
    """Returns a value whose named tuples, at any depth, are mappings."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: _named(inner) for key, inner in value.items()}
    return [_named(inner) for inner in value] if isinstance(value, list | tuple) else value


def compact(value: Any) -> str:
    """Returns JSON on one line; "" for an empty value."""
    return json_line(value) if value else ""


def cut(words: str) -> str:
    """Returns as much of a text as a table shows."""
    return words if len(words) <= _MOST else f"{words[:_MOST]}…"


def literal(value: Any) -> str:
    """Returns a string as it is, any other value as JSON on one line."""
    return value if isinstance(value, str) else json_line(value)


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime | timedelta | UUID):
        return audit.as_json(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _console(written: StringIO) -> Console:
    """Returns a console like standard output that writes to `written`.

    If standard output is not a terminal, lines are as long as they need to be.
    """
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
    """Prints tables or text, without blanks at the ends of lines."""
    written = StringIO()
    console = _console(written)
    for part in parts:
        console.print(part, crop=False)
    for row in written.getvalue().splitlines():
        row = harmless(row.rstrip().replace(tables.GLUE, " "))
        click.echo(row, color=console.is_terminal or None)


def is_wide(columns: int = 110) -> bool:
    """Returns whether the terminal has at least that many columns, enough for whole tables."""
    return _console(StringIO()).width >= columns


def fits(rows: Sequence[Mapping[str, Cell]]) -> bool:
    """Returns whether the terminal has room for each row on a line."""
    return not rows or tables.natural_width(texts(rows)) <= _console(StringIO()).width


def show_table(
    rows: Sequence[Mapping[str, Cell]],
    *,
    names: Collection[str] = (),
    folding: Collection[str] = (),
) -> None:
    """Prints rows, given as their cells by column, as a table without lines.

    Where the terminal is too narrow, words of the `folding` columns are broken, and those of
    `names` are put on lines of their own. Numbers are flush right.
    """
    if not rows:
        return
    width = _console(StringIO()).width
    show(*tables.lines(texts(rows), width, names=names, prose=folding, numbers=numbers(rows)))


def texts(rows: Sequence[Mapping[str, Cell]]) -> list[dict[str, Text]]:
    """Returns rows as they are printed."""
    return [{name: text(cell) for name, cell in row.items()} for row in rows]


def numbers(rows: Sequence[Mapping[str, Cell]]) -> list[str]:
    """Returns the columns that have numbers, which are flush right."""
    return [name for name in rows[0] if any(_is_number(row[name]) for row in rows)]


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int) or (isinstance(cell, Text) and cell.plain.isdigit())


def text(cell: Cell) -> Text:
    """Returns a cell as it is printed."""
    if isinstance(cell, Text):
        return cell
    return Text("" if cell is None else line(cell))


def show_listing(
    rows: Sequence[Row],
    *,
    cells_of: Callable[[Row], Mapping[str, Cell]],
    none: str,
    json_of: Callable[[Row], Any] | None = None,
    names: Collection[str] = (),
    folding: Collection[str] = (),
    limit: int | None = None,
) -> None:
    """Prints rows: as JSON, as a table, or the sentence `none` if there are no rows.

    Prints at most `limit` rows, and a remark if there are more; in JSON what `json_of` returns.
    """
    has_more = limit is not None and len(rows) > limit
    rows = rows[:limit]
    if is_json():
        echo_json(rows if json_of is None else [json_of(row) for row in rows])
    elif rows:
        show_table([cells_of(row) for row in rows], names=names, folding=folding)
    else:
        click.echo(none)
    if has_more:
        note(f"there are more than these {limit}; --limit shows them.")


def short_id(row_id: UUID | str | None) -> Cell:
    """Returns an id as a cell: on a terminal the first 8 characters of it, which suffice."""
    if row_id is None:
        return None
    return str(row_id)[:8] if sys.stdout.isatty() else str(row_id)


def shortened(names: Sequence[str], most: int = 10) -> str:
    """Returns the first names on one line, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(line, names[:most])) + more


def show_facts(title: str | None, *facts: tuple[str, Cell], view: Any = None) -> None:
    """Prints names and their values below a title; leaves out facts without a value.

    With `--json`, it prints the `view` instead, if there is one.
    """
    if view is not None and is_json():
        echo_json(view)
        return
    if title is not None:
        click.secho(line(title), bold=True)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        if value is not None and value != "":
            table.add_row(f"  {name}", text(value))
    show(table)


def line(value: object) -> str:
    """Returns a value on one line, without characters that would move the cursor."""
    words = " ".join(str(value).split())
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words)


#: Sequences that set a colour or style, and control characters.
_CONTROLS = re.compile(r"(\x1b\[[0-9;]*m)|[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def harmless(words: str) -> str:
    """Returns a text whose control characters move no cursor and give a terminal no order."""
    return _CONTROLS.sub(lambda match: match[1] or "\N{REPLACEMENT CHARACTER}", words)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Returns a number of things: `1 message`, `2 messages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def styled(word: str) -> Text:
    """Returns an outcome, a state or a result in its colour."""
    return Text(word, style=STYLES.get(word.split(" ")[0], ""))


def utc(moment: datetime | None) -> str:
    """Returns a time in UTC, to the second."""
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def local_times(moment: datetime, zone: ZoneInfo) -> dict[str, Cell]:
    """Returns cells with a time in a zone and in UTC, by the names of the zones."""
    zones = {zone.key: zone, "UTC": UTC}
    return {
        name: f"{moment.astimezone(local):%a %Y-%m-%d %H:%M:%S %Z}" for name, local in zones.items()
    }


def code(row: str) -> str:
    """Returns a line of a traceback with its blanks, without characters that move the cursor."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in row)


def lasting(length: timedelta) -> str:
    """Returns how long something lasted in words, below a second in milliseconds."""
    if length < timedelta(seconds=1):
        return f"{1000 * length.total_seconds():.0f} ms"
    return span(length)


def when(moment: datetime | None, now: datetime) -> str | None:
    """Returns a time in UTC and how far away it is."""
    return None if moment is None else f"{utc(moment)} UTC, {relative(moment, now)}"


def when_and_who(moment: datetime | None, who: str | None, now: datetime) -> str | None:
    """Returns when something happened, and by whom if that is known."""
    shown = when(moment, now)
    return f"{shown}, by {who}" if shown and who else shown


def labels(pairs: Mapping[str, str]) -> str:
    """Returns labels on one line."""
    return ", ".join(f"{line(name)}={line(value)}" for name, value in sorted(pairs.items()))


def timetable(row: Schedule, default_zone: str | None = None) -> str:
    """Returns the timetable of a schedule in a few words."""
    text = "by the app's code"
    if row.cron is not None:
        text = line(cron_on_one_line(row.cron))
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
        how = {"failed": " (failed)", "finished": " (however it ends)"}.get(row.after_outcome, "")
        text = f"after {line(upstreams_of(row))}{how}"
    zone = row.timezone or default_zone
    return f"{text} ({zone})" if is_local(row) and zone else text


def is_local(row: Schedule) -> bool:
    """Returns whether the schedule's timetable follows the clock of a time zone."""
    is_days = row.every is not None and not row.every % timedelta(days=1)
    return row.cron is not None or row.rrule is not None or is_days


def state(row: Schedule) -> str:
    """Returns a schedule's state, and how often it failed in a row."""
    is_retrying = row.state == "retrying"
    return f"retry {row.retry_count}/{row.max_retries}" if is_retrying else row.state


def health(row: Health, *, in_full: bool = False) -> Text:
    """Returns a schedule's health in a word or two, or in a sentence."""
    plain = row.code in ("new", "no_outcome", "skipping")
    words = line(row.summary) if in_full else row.short
    return Text(words, style="" if plain else STYLES[row.severity])


def why(tick: Tick | Entry) -> str:
    """Returns a tick's reason or error, and its note."""
    return "; ".join(line(text) for text in (tick.reason or tick.error, tick.note) if text)


def window(row: Schedule, now: datetime) -> str:
    """Returns from when to when a schedule may be due; "" without limits."""
    ends = (("from", row.starts_at), ("to", row.ends_at))
    return " ".join(f"{word} {when(moment, now)}" for word, moment in ends if moment is not None)
