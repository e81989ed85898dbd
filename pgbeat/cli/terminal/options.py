"""The options that several commands share, and those that define a schedule."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from math import isfinite
from typing import Any, NoReturn, TypeVar, get_args
from zoneinfo import ZoneInfo

import click

from pgbeat.cli.terminal.numbers import RealRange
from pgbeat.errors import InvalidJob, InvalidTimetable
from pgbeat.jobs.preparing import details
from pgbeat.schedules import AfterMatch, AfterOutcome, CatchUp, Overlap
from pgbeat.timetables import parse_duration

F = TypeVar("F", bound=Callable[..., Any])


def adding(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Returns a decorator that adds options to a command, in this order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def duration(text: str) -> timedelta:
    """Reads a length of time."""
    try:
        return parse_duration(text)
    except InvalidTimetable as error:
        raise click.BadParameter(str(error)) from None


def read_moment(text: str) -> datetime:
    """Reads a time in ISO 8601; naive if it has no offset."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"invalid time {text!r}; write for example '2026-12-24T09:00' or '2026-12-24T09:00Z'"
        ) from None


def in_zone(wall: datetime, local: ZoneInfo, flag: str) -> datetime:
    """Returns a time in UTC; one without an offset is a wall time of the zone.

    Raises `click.BadParameter` for a wall time that the zone's clock skips, or one out of range.
    """
    try:
        if wall.tzinfo is not None:
            return wall.astimezone(UTC)
        moment = wall.replace(tzinfo=local).astimezone(UTC)
        shown = moment.astimezone(local)
    except OverflowError:
        problem = f"{wall.isoformat()} is not in the years 1 to 9999"
    else:
        if shown.replace(tzinfo=None) == wall:
            return moment
        problem = (
            f"{wall.isoformat()} doesn't exist in {local.key}, where the clock goes forward; "
            f"did you mean {shown:%H:%M}?"
        )
    raise click.BadParameter(problem, param_hint=f"'{flag}'")


def _json(kind: type, noun: str, example: str) -> Callable[[str], Any]:
    """Returns what reads JSON of that kind."""
    advice = f"write {noun}, for example '{example}'"

    def read(text: str) -> Any:
        try:
            value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            raise click.BadParameter(f"{text!r} is not JSON ({error}); {advice}") from None
        if not isinstance(value, kind):
            raise click.BadParameter(f"{text!r} is not {noun}; {advice}")
        return value

    return read


def _finite(digits: str) -> float:
    number = float(digits)
    return number if isfinite(number) else _no_constant(digits)


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def read_labels(
    ctx: click.Context, param: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, str] | None:
    """Reads labels from `NAME=VALUE` pairs; `None` if there are none."""
    try:
        return details.parse_labels(pairs) or None
    except InvalidJob as error:
        raise click.BadParameter(str(error)) from None


def _as_list(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> list[str] | None:
    return list(given) or None


def _as_lines(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> str | None:
    return "\n".join(given) if given else None


#: What an option's value is, as click's parameters: how it is read, and how help calls it.
Kind = Mapping[str, Any]
FLAG: Kind = {"is_flag": True}
LENGTH: Kind = {"type": duration, "metavar": "TIME"}
MOMENT: Kind = {"type": read_moment, "metavar": "WHEN"}
JSON_ARRAY: Kind = {"type": _json(list, "an array", '[1, "two"]'), "metavar": "JSON"}
JSON_OBJECT: Kind = {"type": _json(dict, "an object", '{"area": "DK1"}'), "metavar": "JSON"}
JSON: Kind = {"type": _json(object, "a value", '"paid"'), "metavar": "JSON"}
#: May be repeated.
LABELS: Kind = {"multiple": True, "callback": read_labels, "metavar": "NAME=VALUE"}
GLOBS: Kind = {"multiple": True, "callback": _as_list, "metavar": "GLOB"}
LINES: Kind = {"multiple": True, "callback": _as_lines}


def whole(least: int, most: int) -> Kind:
    """Returns the kind of a whole number in a range."""
    return {"type": click.IntRange(least, most), "metavar": "N"}


def option(flag: str, kind: Any, text: str, name: str = "", **more: Any) -> Callable[[F], F]:
    """Returns a decorator that adds an option, with the `text` of its help.

    `kind` is a `Kind`, one of click's types, or only how help calls a value. `name` is the
    parameter's, if it isn't the flag's.
    """
    if isinstance(kind, str):
        kind = {"metavar": kind}
    elif not isinstance(kind, Mapping):
        kind = {"type": kind}
    return click.option(flag, *filter(None, [name]), help=text, **{**kind, **more})


#: Options that describe a schedule or a job.
DETAILS = [
    option("--description", "TEXT", "What it is for."),
    option(
        "--label", LABELS, "A label, such as team=billing; may be given several times.", "labels"
    ),
    option("--metadata", JSON_OBJECT, "Any other data to keep with it, an object."),
]
#: Limits a list to rows with these labels.
label_filter = option("--label", LABELS, "Only with this label.", "labels")
#: Adds the options that describe a job.
describing = adding(*DETAILS)
newest_option = option(
    "--limit", click.IntRange(1, 100_000), "How many, the newest first.", default=20
)


#: Adds an option of a report, a length of time.
length_option = partial(option, kind=LENGTH, metavar="DURATION")


def since_option(default: str) -> Callable[[F], F]:
    """Returns a decorator that adds how far a report looks back."""
    return length_option("--since", text="How far to look back: 2h, 7 days.", default=default)


class Option(click.Option):
    """An option that help lists beneath a heading."""

    def __init__(self, *args: Any, heading: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Leaves out the range of a number: the error for a number outside says it."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


def headed(heading: str) -> Callable[..., Callable[[F], F]]:
    """Returns `option` for options that help lists beneath a heading."""
    return partial(option, cls=Option, heading=heading)


#: Key of click's `Context.meta`: the wrong values of a `SectionedCommand` that `collects` them.
_MISTAKES = "pgbeat.cli.mistakes"


def wrong_values() -> dict[str, str]:
    """Returns the messages of the current command's wrong values, by parameter."""
    wrong: dict[str, str] = click.get_current_context().meta.get(_MISTAKES, {})
    return wrong


class SectionedCommand(click.Command):
    """A command whose help groups its options, and lists all that clear something on one line.

    It shows all wrong values at once; with `collects`, it takes them as not given, and
    `wrong_values` returns them.
    """

    def __init__(self, *args: Any, collects: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.collects = collects

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads the parameters. Raises `UsageError` with all wrong values."""
        try:
            return super().parse_args(ctx, list(args))
        except click.MissingParameter:
            raise
        except click.BadParameter:
            wrong = self._wrong(ctx, list(args))
            if not self.collects:
                if len(wrong) < 2:
                    raise
                ctx.fail("\n  ".join(["several values are invalid:", *wrong.values()]))
        ctx.meta[_MISTAKES] = wrong
        ctx.params.clear()
        ctx.resilient_parsing = True  # wrong values are none
        try:
            return super().parse_args(ctx, list(args))
        finally:
            ctx.resilient_parsing = False

    def _wrong(self, ctx: click.Context, args: list[str]) -> dict[str, str]:
        wrong = {}
        values, args, _ = self.make_parser(ctx).parse_args(args=args)
        for param in self.get_params(ctx):
            try:
                param.handle_parse_result(ctx, values, args)
            except click.BadParameter as error:
                wrong[str(param.name)] = error.format_message()
        return wrong

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the options beneath their headings."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "heading", _REST), []).append(record)
        rest = sections.pop(_REST)
        clearable = [flag.removeprefix("--no-") for flag, _ in sections.pop(CLEAR, [])]
        if clearable:
            rest.insert(0, ("--no-NAME", f"Clear it: {', '.join(clearable)}."))
        for heading, records in [*sections.items(), (_REST, rest)]:
            with formatter.section(heading):
                formatter.write_dl(records)


CLEAR, _REST = "Clear", "Options"
_what, _when, _limits = map(headed, ("What to launch", "When (one of these)", "Limits"))
_policies, _failures = map(headed, ("Missed times and overlaps", "Failures"))


_OPTIONS = [
    _what("--task", "TASK", "A task, by its registered name."),
    _what("--args", JSON_ARRAY, "Its positional arguments, an array."),
    _what("--kwargs", JSON_OBJECT, "Its keyword arguments, an object."),
    _what("--queue", "QUEUE", "Where to publish; by default the task's queue."),
    _what(
        "--options", JSON_OBJECT, "Options to publish with, an object: priority, expires, headers …"
    ),
    _what("--launcher", "NAME", "A launcher; by default GenericLauncher."),
    _what("--condition-sql", "SQL", "Launch only if this query's first value is true."),
    _when("--cron", LINES, "'0 2 * * mon-fri', '@daily'; may be repeated.", metavar="EXPR"),
    _when("--every", LENGTH, "90 (seconds), '15 minutes', '1h 30m', '2 days'."),
    _when("--at", MOMENT, "Once: 2026-12-24T09:00.", "once_at"),
    _when("--rrule", "RULE", "RFC 5545: 'FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9;BYMINUTE=0'."),
    _when("--solar", "EVENT", "'sunset 59.91 10.75': event, latitude, longitude."),
    _when(
        "--after", LINES, "Whenever a job of that schedule ends; may be repeated.", metavar="NAME"
    ),
    _when(
        "--after-outcome",
        click.Choice(get_args(AfterOutcome)),
        "After which outcome of that job; by default completed.",
    ),
    _when(
        "--after-match",
        click.Choice(get_args(AfterMatch)),
        "After a job of all of these schedules, or of any; by default all.",
    ),
    _when("--timezone", "ZONE", "The time zone, as Europe/Oslo; by default the app's."),
    _limits("--starts-at", MOMENT, "Not due before."),
    _limits("--ends-at", MOMENT, "Not due after."),
    _limits("--max-runs", whole(1, 2**31 - 1), "Complete the schedule after this many launches."),
    _limits("--calendar", "NAME", "The calendar whose excluded times are skipped."),
    _limits("--jitter", LENGTH, "Delay each due time by a random time up to this."),
    _policies(
        "--catch-up",
        click.Choice(get_args(CatchUp)),
        "Which missed times to launch; by default the latest.",
    ),
    _policies("--catch-up-limit", whole(1, 10_000), "How many, with `all`; by default 100."),
    _policies("--grace", LENGTH, "How late a launch may be; later times are skipped."),
    _policies(
        "--overlap",
        click.Choice(get_args(Overlap)),
        "While its last job is unfinished; by default allow.",
    ),
    _policies("--min-interval", LENGTH, "The shortest time between two launches."),
    _failures(
        "--max-retries", whole(0, 2**31 - 1), "Disable it after this many failures in a row."
    ),
    _failures("--retry-base", LENGTH, "The n-th retry comes after base × factor^n …"),
    _failures("--retry-factor", "X", "… by default 2 …", type=RealRange(1, 1000)),
    _failures("--retry-cap", LENGTH, "… but no later."),
    _failures("--probe-after", LENGTH, "Once disabled, try it again after this time."),
    _failures(
        "--pause-after-failures", whole(1, 1000), "Pause it after this many failed jobs in a row."
    ),
    _failures("--fresh-within", LENGTH, "It is stale if no job of it completes for this long."),
    _failures(
        "--check-in-url", "URL", "Report each run there; {/start,,/fail} in it has alternatives."
    ),
    option("--owner", "WHO", "Whom to ask about it."),
    *DETAILS,
]
#: The flags of columns that hold times.
MOMENTS = {"once_at": "--at", "starts_at": "--starts-at", "ends_at": "--ends-at"}
_CLEARABLE = (
    "task", "queue", "condition_sql", "timezone", "starts_at", "ends_at", "max_runs", "calendar",
    "jitter", "grace", "min_interval", "probe_after", "owner", "pause_after_failures",
    "fresh_within", "check_in_url", "description", "labels", "metadata",
)  # fmt: skip
#: The columns that can be cleared, by option.
CLEARABLE = {name.removesuffix("_sql").replace("_", "-"): name for name in _CLEARABLE}

#: Adds the options that define a schedule.
definition = adding(*_OPTIONS)
#: Adds a flag for each column that can be cleared.
clearing = adding(*(headed(CLEAR)(f"--no-{name}", FLAG, f"Clear {name}.") for name in CLEARABLE))
