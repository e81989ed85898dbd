"""The options that say what a calendar excludes, for `pgbeat calendars add` and `update`."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _window(text: str) -> dict[str, Any]:
    """A window from `22:00-06:00` or `mon-fri 22:00-06:00`; what is in it is checked later."""
    days, _, hours = text.strip().rpartition(" ")
    start, dash, end = hours.partition("-")
    if not dash:
        raise click.BadParameter(f"{text!r} is no window; write '22:00-06:00' or "
                                 "'mon-fri 09:00-17:00'")  # fmt: skip
    window: dict[str, Any] = {"from": start, "to": end}
    return window | {"weekdays": _words(days)} if days else window


def _country(text: str) -> list[dict[str, Any]]:
    found = []
    for word in _words(text):
        country, dash, subdivision = word.partition("-")
        found.append({"country": country} | ({"subdivision": subdivision} if dash else {}))
    return found


def _market(text: str) -> list[dict[str, Any]]:
    return [{"market": word} for word in _words(text)]


def _read(_: click.Context, __: click.Parameter, path: str | None) -> dict[str, Any] | None:
    """What is in the file: before any row is locked, as it may be typed."""
    if path is None:
        return None
    try:
        with click.open_file(path, encoding="utf-8") as file:
            found = json.load(file, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{path!r} is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise click.BadParameter(f"{path!r} has no object; `pgbeat calendars show` prints one")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"it has the key {twice!r} twice")
    return found


_OPTIONS = [
    click.option("--file", type=click.Path(exists=True, dir_okay=False, allow_dash=True),
                 callback=_read, metavar="FILE",
                 help="The whole definition, JSON; - is standard input."),
    click.option("--timezone", metavar="ZONE", help="Whose clock counts; the schedule's zone."),
    click.option("--dates", type=_words, metavar="DATES",
                 help="2026-12-24,12-25,2026-12-24/2027-01-02: once, every year, from … to."),
    click.option("--weekdays", type=_words, metavar="DAYS", help="sat,sun or mon-fri."),
    click.option("--holidays", type=_country, metavar="COUNTRIES", help="NO,DE-BY."),
    click.option("--market", type=_market, metavar="MARKETS", help="Days without trade: NYSE."),
    click.option("--window", "windows", type=_window, multiple=True, metavar="HOURS",
                 help="'22:00-06:00' or 'mon-fri 22:00-06:00'; may be repeated."),
    click.option("--only-weekdays", type=_words, metavar="DAYS", help="Exclude all others."),
    click.option("--only-window", "only_windows", type=_window, multiple=True, metavar="HOURS",
                 help="Exclude all other hours; may be repeated."),
]  # fmt: skip
#: Rules that can be cleared: their keys.
_CLEARABLE = ("timezone", "dates", "weekdays", "holidays", "windows", "only")


def rules(command: F) -> F:
    """Adds an option for each rule."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def clearing(command: F) -> F:
    """Adds a flag for each rule that can be cleared."""
    for key in reversed(_CLEARABLE):
        command = click.option(f"--no-{key}", is_flag=True, help=f"Clear the {key}.")(command)
    return command


def given_definition(given: dict[str, Any], before: dict[str, Any]) -> dict[str, Any] | None:
    """The definition that the options make of the one before; `None` where none is given."""
    values = {
        key: given[key] for key in ("timezone", "dates", "weekdays") if given[key] is not None
    }
    holidays = (given["holidays"] or []) + (given["market"] or [])
    if holidays:
        values["holidays"] = holidays[0] if len(holidays) == 1 else holidays
    if given["windows"]:
        values["windows"] = list(given["windows"])
    only = {"weekdays": given["only_weekdays"], "windows": list(given["only_windows"])}
    if any(only.values()):
        kept = before.get("only")
        kept = kept if isinstance(kept, dict) else {}
        values["only"] = kept | {key: value for key, value in only.items() if value}
    cleared = [key for key in _CLEARABLE if given.get(f"no_{key}")]
    if given["file"] is not None:
        if values or cleared:
            raise click.UsageError("--file and the other options exclude each other")
        return dict(given["file"])
    for key in cleared:
        if key in values:
            raise click.UsageError(f"--no-{key} excludes the options that set it")
    rest = {key: value for key, value in before.items() if key not in cleared}
    return rest | values if values or cleared else None
