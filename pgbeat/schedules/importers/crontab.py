"""Reads crontabs, of users and of the system: each command becomes a task's only argument."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pgbeat.schedules.files import InvalidFile, Mistake
from pgbeat.schedules.importers import imported, timetables
from pgbeat.schedules.importers.timetables import When

BEAT = "cron"
#: The zone of the lines that follow, in crons that know it. `TZ` is only the commands'.
ZONE = "CRON_TZ"
_SETTING = re.compile(r"""("[^"]*"|'[^']*'|[^\s=]+)\s*=\s*(.*)""")
_FOLDER = re.compile(r"\A[\w.~+-]*/(?:[\w.~+-]+/)*(?=[\w.~+-])")


class CronLine(NamedTuple):
    """What becomes a schedule, whether it has one line or several."""

    text: str
    zone: str | None
    user: str | None

    @property
    def names(self) -> list[str]:
        """Returns its names: without the folder of its program, as it is; with zone and user."""
        plain = [_FOLDER.sub("", self.text), self.text]
        rest = ", ".join(filter(None, (self.zone, self.user)))
        return [*plain, *(f"{name} ({rest})" for name in plain)]


def is_system(path: str) -> bool:
    """Returns whether the lines of a file there name users."""
    file = Path(path).absolute()
    return file == Path("/etc/crontab") or file.parent == Path("/etc/cron.d")


def inventory(
    label: str, text: str, *, task: str, timezone: str | None = None, system: bool = False
) -> imported.Inventory:
    """Returns a crontab's commands as arrivals. Raises `InvalidFile`.

    `timezone` is for lines without `CRON_TZ` before them.
    """
    result = imported.Inventory(BEAT, label, stop="remove these lines from cron's files")
    settings: dict[str, str] = {}
    crons: dict[CronLine, list[str]] = {}
    mistakes = []
    for number, line in _lines(text):
        if setting := _SETTING.fullmatch(line):
            name, value = (part.strip("'\"") for part in setting.groups())
            settings[name] = value
            continue
        count = (1 if line.startswith("@") else 5) + system
        parts = line.split(None, count)
        if len(parts) <= count:
            example = f'"0 2 * * * {"root " * system}backup"'
            mistakes.append(Mistake(number, 1, f"expected a line such as {example}, got {line!r}"))
            continue
        user = parts[count - 1] if system else None
        cron = " ".join(parts[: count - system])
        command = CronLine(parts[count].replace(r"\%", "%"), settings.get(ZONE) or timezone, user)
        if reason := _reason(cron, parts[count], command.zone):
            result.refusals.append(imported.Unimportable(command.text, reason))
        else:
            crons.setdefault(command, []).append(cron)
    if mistakes:
        raise InvalidFile(label, mistakes)
    for (command, lines), origin in zip(crons.items(), _origins(list(crons)), strict=True):
        result.take(_arrival, origin, command, lines, task)
    if others := sorted(settings.keys() - {ZONE}):
        result.notes.append(f"settings are not carried over: {', '.join(others)}")
    return result


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields the lines that say something, with their numbers."""
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield number, stripped


def _reason(cron: str, text: str, zone: str | None) -> str | None:
    """Returns why a line can't become a schedule."""
    if cron.lower() == "@reboot":
        return "it runs when the machine starts (@reboot), and no timetable knows when that is"
    if "%" in re.sub(r"\\.", "", text):
        return "cron gives the command what follows a % as its input, which a task doesn't have"
    return timetables.LOCAL if zone is None else None


def _origins(commands: list[CronLine]) -> Iterator[str]:
    """Yields the first name of each command that no other has."""
    counts = [Counter(names) for names in zip(*(c.names for c in commands), strict=True)]
    for command in commands:
        named = zip(command.names, counts, strict=True)
        yield next((name for name, count in named if count[name] == 1), command.names[-1])


def _arrival(origin: str, command: CronLine, crons: list[str], task: str) -> imported.Arrival:
    return imported.Arrival(
        origin=origin,
        what={"task": task, **imported.arguments([command.text], {})},
        when=When({"cron": "\n".join(dict.fromkeys(crons)), "timezone": command.zone}),
        remarks=(f"cron ran it as {command.user}",) if command.user else (),
    )
