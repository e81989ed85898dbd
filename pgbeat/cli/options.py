"""The options that say what a schedule is, for `pgbeat add` and `update`."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import click

from pgbeat.errors import InvalidTimetable
from pgbeat.timetables import parse_duration

F = TypeVar("F", bound=Callable[..., Any])


def duration(text: str) -> timedelta:
    """A length of time; `click.BadParameter` with the sentence of `parse_duration`."""
    try:
        return parse_duration(text)
    except InvalidTimetable as error:
        raise click.BadParameter(str(error)) from None


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


def _json(text: str, advice: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{text!r} is not JSON ({error}); {advice}") from None


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")


_OPTIONS = [
    click.option("--task", help="The task to launch, by its registered name."),
    click.option("--cron", metavar="EXPR", help="When: a cron expression, such as '0 2 * * *'."),
    click.option(
        "--every", type=duration, metavar="TIME",
        help="When: 90 (seconds), '15 minutes', '1h 30m'.",
    ),
    click.option("--timezone", metavar="ZONE", help="Zone of the cron expression: Europe/Oslo."),
    click.option("--launcher", metavar="NAME", help="A registered launcher; GenericLauncher."),
    click.option(
        "--args", type=json_array,
        metavar="JSON", help="The task's positional arguments, an array.",
    ),
    click.option(
        "--kwargs", type=json_object,
        metavar="JSON", help="The task's keyword arguments, an object.",
    ),
    click.option("--queue", help="The queue to publish to."),
    click.option(
        "--options", type=json_object,
        metavar="JSON", help="Publish options, an object: priority, expires, headers …",
    ),
    click.option(
        "--condition-sql", metavar="SQL",
        help="Launch only if the first column of its first row is true.",
    ),
    click.option(
        "--max-retries", type=click.IntRange(0, 1_000_000),
        help="Failures in a row after which it is disabled.",
    ),
    click.option(
        "--retry-base", type=duration, metavar="TIME",
        help="The first wait after a failure is twice this, then doubled each time.",
    ),
    click.option(
        "--retry-cap", type=duration, metavar="TIME", help="The longest wait after a failure."
    ),
    click.option("--owner", help="Whom to ask about it."),
]  # fmt: skip
#: Columns that can be cleared, by their option.
CLEARABLE = {
    "condition": "condition_sql",
    "task": "task",
    "timezone": "timezone",
    "queue": "queue",
    "owner": "owner",
}


def definition(command: F) -> F:
    """Adds an option for each thing that can be set."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def clearing(command: F) -> F:
    """Adds a flag for each thing that can be cleared."""
    for name in reversed(CLEARABLE):
        option = click.option(f"--no-{name}", is_flag=True, help=f"Clear the {name}.")
        command = option(command)
    return command
