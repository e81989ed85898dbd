"""Says in words when a schedule is due."""

import re
from datetime import UTC, timedelta

from pgbeat.schedules import upstreams
from pgbeat.schedules.model import Schedule
from pgbeat.timetables import cron_lines, cron_on_one_line, plain_cron, span

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_SHORT = {day[:3].lower(): number for number, day in enumerate(_DAYS)}
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
#: The most lines of a cron that are said in words.
_FEW_LINES = 3
_AFTER = {"completed": "completed", "failed": "failed", "finished": "ended"}


def cron(expression: str) -> str | None:
    """Returns a cron timetable in words; `None` if it is too complex for few and exact words."""
    lines = [_cron(line) for line in cron_lines(expression)]
    words = [line for line in lines if line is not None]
    return "; ".join(words) if len(words) == len(lines) <= _FEW_LINES else None


def _cron(expression: str) -> str | None:
    fields = plain_cron(expression).split()
    if len(fields) != 5:
        return None
    minute, hour, day, month, weekday = fields
    when = _days(day, month, weekday)
    clock = _clock(minute, hour)
    if when is None or clock is None:
        return None
    if clock.startswith("at "):
        return f"{when or 'every day'} {clock}"
    return f"{clock}, {when}" if when else clock


def _clock(minute: str, hour: str) -> str | None:
    """Returns the time of day: `at 02:30` or `every 15 minutes`."""
    minutes, hours = _numbers(minute, 59), _numbers(hour, 23)
    if minutes and hours and len(minutes) * len(hours) <= 4:
        times = [f"{h:02}:{m:02}" for h in hours for m in minutes]
        return "at " + _listed(times)
    step, of_hours = _step(minute, 60), _step(hour, 24)
    during = _span_of_hours(hour)
    if step and during is not None:
        return ("every minute" if step == 1 else f"every {step} minutes") + during
    if minutes and len(minutes) <= 4:
        past = _listed([f"{m:02}" for m in minutes])
        if of_hours is None:
            return None if during is None else f"every hour at minute {past}{during}"
        if of_hours == 1:
            return "every hour, on the hour" if minutes == [0] else f"every hour at minute {past}"
        return f"every {of_hours} hours" + ("" if minutes == [0] else f", at minute {past}")
    return None


def _span_of_hours(hour: str) -> str | None:
    """Returns `9-17` as `, from 09:00 to 17:59`; nothing for all hours."""
    if hour == "*":
        return ""
    match = re.fullmatch(r"(\d{1,2})(?:-(\d{1,2}))?", hour)
    if match is None:
        return None
    first, last = int(match[1]), int(match[2] or match[1])
    return f", from {first:02}:00 to {last:02}:59" if first <= last <= 23 else None


def _days(day: str, month: str, weekday: str) -> str | None:
    """Returns the days; nothing for all of them."""
    if month != "*" and not (month.isdigit() and 1 <= int(month) <= 12):
        return None
    of = "" if month == "*" else f" in {_MONTHS[int(month) - 1]}"
    if day == "*" and weekday == "*":
        return f"every day{of}" if of else ""
    if day == "*":
        named = _weekdays(weekday)
        return None if named is None else named + of
    if weekday != "*":
        return None
    if day == "l":
        return "on the last day of " + (_MONTHS[int(month) - 1] if of else "each month")
    days = _numbers(day, 31)
    if not days or len(days) > 4 or days[0] == 0:
        return None
    noun = "day" if len(days) == 1 else "days"
    return f"on {noun} {_listed(list(map(str, days)))} of " + (
        _MONTHS[int(month) - 1] if of else "each month"
    )


def _weekdays(text: str) -> str | None:
    if text in ("1-5", "mon-fri"):
        return "Monday to Friday"
    numbers = []
    for item in text.split(","):
        number = _SHORT.get(item, int(item) % 7 if re.fullmatch("[0-7]", item) else None)
        if number is None:
            return None
        numbers.append(number)
    return _listed([f"{_DAYS[number]}s" for number in dict.fromkeys(numbers)])


def _numbers(text: str, most: int) -> list[int] | None:
    """Parses `5` and `5,20`."""
    if not re.fullmatch(r"\d{1,2}(,\d{1,2})*", text):
        return None
    numbers = sorted({int(item) for item in text.split(",")})
    return numbers if numbers[-1] <= most else None


def _step(text: str, whole: int) -> int | None:
    """Parses `*` and `*/15`, if all steps are equally long."""
    if text == "*":
        return 1
    match = re.fullmatch(r"\*/(\d{1,2})", text)
    if match is None or not int(match[1]) or whole % int(match[1]):
        return None
    return int(match[1])


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def timetable(row: Schedule, default_zone: str) -> tuple[str, str]:
    """Returns when a schedule is due in words, and the timetable itself if the words differ."""
    zone = row.timezone or default_zone
    if row.cron is not None:
        words, lines = cron(row.cron), cron_on_one_line(row.cron)
        return (f"{words} ({zone})", lines) if words else (f"cron {lines} ({zone})", "")
    if row.every is not None:
        of = f" ({zone})" if not row.every % timedelta(days=1) else ""
        return f"every {_every(row.every)}{of}", ""
    if row.once_at is not None:
        return f"once, at {row.once_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC", ""
    if row.solar is not None:
        event, *place = row.solar.split()
        return f"at {event.replace('_', ' ')}, at {', '.join(place)}", ""
    if row.rrule is not None:
        return f"by rule ({zone})", row.rrule
    if row.after is not None:
        have = "have" if row.after_match == "all" and "\n" in row.after else "has"
        ended = _AFTER.get(row.after_outcome, row.after_outcome)
        return f"after {upstreams_of(row)} {have} {ended}", ""
    return "decided by the app's code", ""


def upstreams_of(row: Schedule) -> str:
    """Returns the schedules that a schedule comes after: `a and b` or `a or b`."""
    names = upstreams(row.after)
    return " or ".join(names) if row.after_match == "any" else _listed(names)


def _every(length: timedelta) -> str:
    units = ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
    seconds = length.total_seconds()
    for size, name in units:
        if seconds % size == 0 and seconds >= size:
            count = int(seconds // size)
            return name if count == 1 else f"{count:,} {name}s"
    return span(length, units=4)
