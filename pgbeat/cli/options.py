"""The options that say what a schedule is, for `pgbeat add` and `update`; what a value may be."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any, NoReturn, TypeVar
from zoneinfo import ZoneInfo

import click

from pgbeat.errors import InvalidTimetable
from pgbeat.jobs import details
from pgbeat.timetables import parse_duration

F = TypeVar("F", bound=Callable[..., Any])


# -- values


def duration(text: str) -> timedelta:
    """A length of time; `click.BadParameter` with the sentence of `parse_duration`."""
    try:
        return parse_duration(text)
    except InvalidTimetable as error:
        raise click.BadParameter(str(error)) from None


def read_moment(text: str) -> datetime:
    """A time in ISO 8601, naive where it names no offset; `click.BadParameter` for others."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time; write for example '2026-12-24T09:00' or '2026-12-24T09:00Z'"
        ) from None


def in_zone(wall: datetime, local: ZoneInfo, flag: str) -> datetime:
    """The instant, in UTC, of a time: one without an offset is what the zone's clock shows.

    `click.BadParameter` for a wall time that the zone leaves out, and beyond the calendar.
    """
    try:
        if wall.tzinfo is not None:
            return wall.astimezone(UTC)
        found = wall.replace(tzinfo=local).astimezone(UTC)
        shown = found.astimezone(local)
    except OverflowError:
        problem = f"{wall.isoformat()} is not of the years 1 to 9999"
    else:
        if shown.replace(tzinfo=None) == wall:
            return found
        problem = (
            f"{wall.isoformat()} is left out in {local.key}, where the clock goes forward; "
            f"did you mean {shown:%H:%M}?"
        )
    raise click.BadParameter(problem, param_hint=f"'{flag}'")


def json_array(text: str) -> list[Any]:
    """A JSON array; `click.BadParameter` for anything else."""
    found = _json(text, "write an array, for example '[1, \"two\"]'")
    if not isinstance(found, list):
        raise click.BadParameter(f"{text!r} is not an array; write for example '[1, \"two\"]'")
    return found


def json_object(text: str) -> dict[str, Any]:
    """A JSON object; `click.BadParameter` for anything else."""
    found = _json(text, 'write an object, for example \'{"area": "DK1"}\'')
    if not isinstance(found, dict):
        raise click.BadParameter(
            f'{text!r} is not an object; write for example \'{{"area": "DK1"}}\''
        )
    return found


def _labels(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> dict[str, str] | None:
    """The labels of `NAME=VALUE` pairs; `None` where none is given."""
    found = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"{pair!r} has no '='; write for example 'team=billing'")
        found[name] = value
    problem = details.labels_problem(found)
    if problem is not None:
        raise click.BadParameter(f"labels {problem}")
    return found or None


#: Options that say what a schedule or a job is about.
DETAILS = [
    click.option("--description", metavar="TEXT", help="What it is for."),
    click.option("--label", "labels", multiple=True, callback=_labels, metavar="NAME=VALUE",
                 help="A label, such as team=billing; may be given several times."),
    click.option("--metadata", type=json_object, metavar="JSON",
                 help="Anything else to keep with it, an object."),
]  # fmt: skip
#: For listings: only what has these labels.
label_filter = click.option("--label", "labels", multiple=True, callback=_labels,
                            metavar="NAME=VALUE", help="Only those with this label.")  # fmt: skip


def describing(command: F) -> F:
    """Adds the options that say what a job is about."""
    for option in reversed(DETAILS):
        command = option(command)
    return command


newest_option = click.option("--limit", type=click.IntRange(1, 100_000), default=20,
                             show_default=True, help="The newest so many.")  # fmt: skip


def _json(text: str, advice: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{text!r} is not JSON ({error}); {advice}") from None


def _finite(digits: str) -> float:
    found = float(digits)
    return found if isfinite(found) else _no_constant(digits)


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


# -- help


class Option(click.Option):
    """An option that help lists beneath a heading."""

    def __init__(self, *args: Any, heading: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Without the range of a number: who leaves it is told."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


class Command(click.Command):
    """A command whose help groups its options; those that clear something share one line."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options beneath their headings, in the order in which these come up."""
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


_WHAT, _WHEN, _LIMITS = "What it launches", "When (one of them)", "Within which limits"
_POLICIES, _FAILURES = "Where times are missed or come too close", "When it fails"
CLEAR, _REST = "Clear", "Options"


def _option(heading: str, *names: str, **kwargs: Any) -> Callable[[F], F]:
    return click.option(*names, cls=Option, heading=heading, **kwargs)


_OPTIONS = [
    _option(_WHAT, "--task", metavar="TASK", help="A task, by its registered name."),
    _option(_WHAT, "--args", type=json_array, metavar="JSON",
            help="Its positional arguments, an array."),
    _option(_WHAT, "--kwargs", type=json_object, metavar="JSON",
            help="Its keyword arguments, an object."),
    _option(_WHAT, "--queue", metavar="QUEUE", help="Where to publish; the task's own queue."),
    _option(_WHAT, "--options", type=json_object, metavar="JSON",
            help="How to publish, an object: priority, expires, headers …"),
    _option(_WHAT, "--launcher", metavar="NAME", help="A registered launcher; GenericLauncher."),
    _option(_WHAT, "--condition-sql", metavar="SQL",
            help="Launch only if the first column of its first row is true."),
    _option(_WHEN, "--cron", metavar="EXPR", help="'0 2 * * mon-fri', '@daily'."),
    _option(_WHEN, "--every", type=duration, metavar="TIME",
            help="90 (seconds), '15 minutes', '1h 30m', '2 days'."),
    _option(_WHEN, "--at", "once_at", type=read_moment, metavar="WHEN",
            help="Once: 2026-12-24T09:00."),
    _option(_WHEN, "--rrule", metavar="RULE",
            help="RFC 5545: 'FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9;BYMINUTE=0'."),
    _option(_WHEN, "--solar", metavar="EVENT",
            help="'sunset 59.91 10.75': event, latitude, longitude."),
    _option(_WHEN, "--after", metavar="NAME", help="Whenever a job of that schedule has ended."),
    _option(_WHEN, "--after-outcome", type=click.Choice(["completed", "failed", "finished"]),
            help="Which end of that job; completed."),
    _option(_WHEN, "--timezone", metavar="ZONE",
            help="Whose clock counts: Europe/Oslo; the app's zone."),
    _option(_LIMITS, "--starts-at", type=read_moment, metavar="WHEN", help="Not due before."),
    _option(_LIMITS, "--ends-at", type=read_moment, metavar="WHEN", help="Not due after."),
    _option(_LIMITS, "--max-runs", type=click.IntRange(1, 2**31 - 1), metavar="N",
            help="It is done after so many launches."),
    _option(_LIMITS, "--calendar", metavar="NAME", help="The calendar whose times it leaves out."),
    _option(_LIMITS, "--jitter", type=duration, metavar="TIME",
            help="Each due time is put off by a part of it."),
    _option(_POLICIES, "--catch-up", type=click.Choice(["latest", "all", "none"]),
            help="Which of the times that were missed is made up for; latest."),
    _option(_POLICIES, "--catch-up-limit", type=click.IntRange(1, 10_000), metavar="N",
            help="How many of all, at most; 100."),
    _option(_POLICIES, "--grace", type=duration, metavar="TIME", help="How late still counts."),
    _option(_POLICIES, "--overlap",
            type=click.Choice(["allow", "skip", "queue_one", "buffer_all", "cancel_previous"]),
            help="While the job before it is unfinished; allow."),
    _option(_POLICIES, "--min-interval", type=duration, metavar="TIME",
            help="Launches are never closer together."),
    _option(_FAILURES, "--max-retries", type=click.IntRange(0, 1_000_000), metavar="N",
            help="Failures in a row after which it is disabled."),
    _option(_FAILURES, "--retry-base", type=duration, metavar="TIME",
            help="The n-th retry comes after base × factor^n …"),
    _option(_FAILURES, "--retry-factor", type=click.FloatRange(1, 1000), metavar="X",
            help="… 2 if it isn't given …"),
    _option(_FAILURES, "--retry-cap", type=duration, metavar="TIME", help="… but no later."),
    _option(_FAILURES, "--probe-after", type=duration, metavar="TIME",
            help="Disabled, it is tried again after this long."),
    _option(_FAILURES, "--pause-after-failures", type=click.IntRange(1, 1000), metavar="N",
            help="So many failed jobs in a row pause it."),
    click.option("--owner", metavar="WHO", help="Whom to ask about it."),
    *DETAILS,
]  # fmt: skip
#: Columns of times, by their flag.
MOMENTS = {"once_at": "--at", "starts_at": "--starts-at", "ends_at": "--ends-at"}
#: Columns that can be cleared, by their option.
CLEARABLE = {
    "task": "task",
    "queue": "queue",
    "condition": "condition_sql",
    "timezone": "timezone",
    "starts-at": "starts_at",
    "ends-at": "ends_at",
    "max-runs": "max_runs",
    "calendar": "calendar",
    "jitter": "jitter",
    "grace": "grace",
    "min-interval": "min_interval",
    "probe-after": "probe_after",
    "owner": "owner",
    "pause-after-failures": "pause_after_failures",
    "description": "description",
    "labels": "labels",
    "metadata": "metadata",
}
#: What is left when it is cleared, where that is not nothing.
CLEARED: dict[str, Any] = {"jitter": timedelta(0), "labels": {}, "metadata": {}}


def definition(command: F) -> F:
    """Adds an option for each thing that can be set."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def clearing(command: F) -> F:
    """Adds a flag for each thing that can be cleared."""
    for name in reversed(CLEARABLE):
        command = _option(CLEAR, f"--no-{name}", is_flag=True, help=f"Clear {name}.")(command)
    return command
