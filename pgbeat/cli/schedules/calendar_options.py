"""The options of `pgbeat calendars add` and `update` that say what a calendar excludes."""

import json
from typing import Any

import click

from pgbeat.cli.terminal.options import FLAG, adding, option


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _window(text: str) -> dict[str, Any]:
    """Reads a window, `22:00-06:00` or `mon-fri 22:00-06:00`; its parts are checked later."""
    days, _, hours = text.strip().rpartition(" ")
    start, dash, end = hours.partition("-")
    if not dash:
        raise click.BadParameter(
            f"invalid window {text!r}; write '22:00-06:00' or 'mon-fri 09:00-17:00'"
        )
    window: dict[str, Any] = {"from": start, "to": end}
    return window | {"weekdays": _words(days)} if days else window


def _country(text: str) -> list[dict[str, Any]]:
    countries = []
    for word in _words(text):
        country, dash, subdivision = word.partition("-")
        countries.append({"country": country} | ({"subdivision": subdivision} if dash else {}))
    return countries


def _market(text: str) -> list[dict[str, Any]]:
    return [{"market": word} for word in _words(text)]


def _read(_: click.Context, __: click.Parameter, path: str | None) -> dict[str, Any] | None:
    """Reads the file now, before any row is locked: a user may be typing it."""
    if path is None:
        return None
    try:
        with click.open_file(path, encoding="utf-8") as file:
            definition = json.load(file, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{path!r} is not JSON ({error})") from None
    if not isinstance(definition, dict):
        raise click.BadParameter(f"{path!r} is not an object; `pgbeat calendars show` prints one")
    return definition


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"it has the key {twice!r} twice")
    return values


#: Adds an option for each rule.
rules = adding(
    option(
        "--file",
        "FILE",
        "The whole definition, JSON; - is standard input.",
        callback=_read,
        type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    ),
    option("--timezone", "ZONE", "Its time zone; by default the schedule's."),
    option(
        "--dates",
        "DATES",
        "2026-12-24,12-25,2026-12-24/2027-01-02: one day, every year, a period.",
        type=_words,
    ),
    option("--weekdays", "DAYS", "sat,sun or mon-fri.", type=_words),
    option("--holidays", "COUNTRIES", "NO,DE-BY.", type=_country),
    option("--market", "MARKETS", "Days without trade: NYSE.", type=_market),
    option(
        "--window",
        "HOURS",
        "'22:00-06:00' or 'mon-fri 22:00-06:00'; may be repeated.",
        "windows",
        multiple=True,
        type=_window,
    ),
    option("--only-weekdays", "DAYS", "Exclude all other days.", type=_words),
    option(
        "--only-window",
        "HOURS",
        "Exclude all other hours; may be repeated.",
        "only_windows",
        multiple=True,
        type=_window,
    ),
)
#: Keys of the rules that can be cleared.
_CLEARABLE = ("timezone", "dates", "weekdays", "holidays", "windows", "only")
#: Adds a flag for each rule that can be cleared.
clearing = adding(*(option(f"--no-{key}", FLAG, f"Clear the {key}.") for key in _CLEARABLE))


def given_definition(options: dict[str, Any], before: dict[str, Any]) -> dict[str, Any] | None:
    """Applies the options to a definition; returns `None` if there are no options."""
    values = {
        key: options[key] for key in ("timezone", "dates", "weekdays") if options[key] is not None
    }
    holidays = (options["holidays"] or []) + (options["market"] or [])
    if holidays:
        values["holidays"] = holidays[0] if len(holidays) == 1 else holidays
    if options["windows"]:
        values["windows"] = list(options["windows"])
    only = {"weekdays": options["only_weekdays"], "windows": list(options["only_windows"])}
    if any(only.values()):
        kept = before.get("only")
        kept = kept if isinstance(kept, dict) else {}
        values["only"] = kept | {key: value for key, value in only.items() if value}
    cleared = [key for key in _CLEARABLE if options.get(f"no_{key}")]
    if options["file"] is not None:
        if values or cleared:
            raise click.UsageError("--file and the other options exclude each other")
        return dict(options["file"])
    for key in cleared:
        if key in values:
            raise click.UsageError(f"--no-{key} excludes the options that set it")
    rest = {key: value for key, value in before.items() if key not in cleared}
    return rest | values if values or cleared else None
