"""Converts Celery's schedules (crontab, interval, solar, RedBeat's rrule) to timetables of rows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from celery import Celery
from celery.schedules import ParseException, crontab
from celery.schedules import solar as celery_solar

from pgbeat.errors import InvalidTimetable
from pgbeat.schedules.entries import code_entry
from pgbeat.timetables import zone as known_zone
from pgbeat.timetables.rrule_parts import FREQUENCIES, WEEKDAYS

_LONGEST = timedelta(days=36_500)
_SECOND, _MINUTE = timedelta(seconds=1), timedelta(minutes=1)
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)

#: A crontab's fields, in the order of its constructor.
CRONTAB_FIELDS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")


#: Why a time in the zone of an unknown machine can't become a row's.
LOCAL = "it is in the local time zone of a server; give its name with --timezone"


class Unmovable(Exception):
    """A schedule of another store can't become a row; the message is for people."""


@dataclass(frozen=True, slots=True)
class When:
    """When a schedule is due, as columns of its row."""

    #: One of cron, every, once_at, solar and rrule, with its timezone; `starts_at`, if the other
    #: store has one.
    columns: Mapping[str, Any]
    #: Whether it counts from its last run, which then becomes `starts_at` …
    from_last_run: bool = False
    #: … rounded down to this unit in its zone.
    unit: timedelta | None = None
    remarks: tuple[str, ...] = field(default=())

    def starts_at(self, base: datetime | None) -> datetime | None:
        """Returns the row's `starts_at`, for a schedule that ran, or has been due, since `base`.

        If it counts from its last run, a start before that no longer matters.
        """
        start: datetime | None = self.columns.get("starts_at")
        if not self.from_last_run or base is None or (start is not None and base < start):
            return start
        if self.unit is None:
            return base
        local = base.astimezone(known_zone(self.columns["timezone"]))
        zeroes: dict[str, Any] = {"microsecond": 0}
        for name, unit in (("second", _MINUTE), ("minute", _HOUR), ("hour", _DAY)):
            if self.unit >= unit:
                zeroes[name] = 0
        return local.replace(**zeroes).astimezone(UTC)


@lru_cache(maxsize=256)
def _app_in(timezone: str) -> Celery:
    """Returns an app that is never connected: Celery reads crontabs in an app's zone."""
    app = Celery("pgbeat.import", broker="memory://", set_as_current=False)
    app.conf.timezone = timezone
    return app


def of_crontab(timezone: str, fields: Mapping[str, Any]) -> When:
    """Converts a crontab in a zone, by Celery's names of its fields. Raises `Unmovable`.

    With both a day of month and a day of week, Celery requires both to match, and cron either.
    Such a crontab becomes a recurrence rule, which requires both, too.
    """
    _known(timezone)
    try:
        value = crontab(**{name: _plain(field) for name, field in fields.items()})
    except (ValueError, TypeError, IndexError, ParseException) as error:
        raise Unmovable(f"Celery can't read its crontab: {error}") from None
    app = _app_in(timezone)
    cron = code_entry(app, "crontab", {"task": "crontab", "schedule": value}).cron
    if cron is not None:
        return When({"cron": cron, "timezone": timezone})
    by = {
        "BYMONTH": value.month_of_year,
        "BYMONTHDAY": value.day_of_month,
        "BYDAY": [WEEKDAYS[day - 1] for day in sorted(value.day_of_week)],  # 0 is Sunday
        "BYHOUR": value.hour,
        "BYMINUTE": value.minute,
        "BYSECOND": [0],
    }
    return of_days(timezone, by)


def of_days(timezone: str, by: Mapping[str, Any]) -> When:
    """Returns a recurrence rule of days that match by month, day of month and weekday."""
    by = {name: values for name, values in by.items() if name != "BYMONTH" or len(values) < 12}
    return When({"rrule": _rule("MONTHLY", by), "timezone": timezone}, from_last_run=True)


def _plain(field: Any) -> Any:
    """Returns a crontab's field without spaces, which Celery's parser rejects."""
    return field.replace(" ", "") if isinstance(field, str) else field


def _rule(frequency: str, by: Mapping[str, Any]) -> str:
    parts = [f"FREQ={frequency}"]
    for name, value in by.items():
        values = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
        values = values if name == "BYDAY" else sorted(values)
        parts.append(f"{name}={','.join(map(str, values))}")
    return ";".join(parts)


def of_interval(every: timedelta, *, relative: bool = False, timezone: str | None = None) -> When:
    """Converts an interval from one run to the next. Raises `Unmovable`.

    A `relative` one is rounded to whole days, hours, minutes or seconds in a zone.
    """
    if not timedelta(0) < every <= _LONGEST:
        raise Unmovable(f"its interval is {every}; a row's is longer than 0, at most 36500 days")
    if not relative:
        return When({"every": every}, from_last_run=True)
    unit = next((unit for unit in (_DAY, _HOUR, _MINUTE) if every >= unit), _SECOND)
    if every % unit:
        raise Unmovable(
            f"its interval is {every}, rounded to multiples of {unit} (relative), so that the "
            "times between its runs differ; a row's every can't express that"
        )
    if timezone is None:
        raise Unmovable("it is relative, rounded in a time zone that its store doesn't name")
    _known(timezone)
    return When({"every": every, "timezone": timezone}, from_last_run=True, unit=unit)


def of_solar(event: Any, latitude: Any, longitude: Any) -> When:
    """Converts a solar event at a place, in degrees. Raises `Unmovable`."""
    if event not in celery_solar._all_events:
        raise Unmovable(f"its solar event is {event!r}, which Celery doesn't know")
    try:
        degrees = [f"{float(value):.6f}" for value in (latitude, longitude)]
    except (TypeError, ValueError):
        raise Unmovable(f"its place is {latitude!r}, {longitude!r}, which is invalid") from None
    return When({"solar": " ".join([event, *(text.rstrip("0").rstrip(".") for text in degrees)])})


#: As dateutil counts them.
_FREQUENCIES = FREQUENCIES[::-1]
_RULE_PARTS = (
    "BYSETPOS", "BYMONTH", "BYMONTHDAY", "BYYEARDAY", "BYEASTER", "BYWEEKNO", "BYWEEKDAY",
    "BYHOUR", "BYMINUTE", "BYSECOND",
)  # fmt: skip


def of_rrule(fields: Mapping[str, Any], app_timezone: str | None) -> tuple[When, datetime | None]:
    """Converts a rule as RedBeat stores it; returns its end, too. Raises `Unmovable`.

    RedBeat keeps the UTC offset of a rule's start, and not its zone.
    """
    try:
        frequency = int(fields["freq"])
        rule = _parts(fields)
        start, end = _timestamp(fields.get("dtstart")), _timestamp(fields.get("until"))
        offset = timedelta(minutes=float(fields.get("dtstart_tz") or 0))
        if not 0 <= frequency < len(_FREQUENCIES):
            raise ValueError(f"freq is {frequency}")
    except (KeyError, IndexError, TypeError, ValueError, OverflowError, OSError) as error:
        raise Unmovable(f"its rule can't be read: {type(error).__name__}: {error}") from None
    timezone, remarks = _zone_of(offset, start, app_timezone)
    if start is not None:
        # The row's rule has no DTSTART to fill in what it leaves open.
        local = start.astimezone(known_zone(timezone))
        times = {"BYHOUR": local.hour, "BYMINUTE": local.minute, "BYSECOND": local.second}
        for than, (part, value) in enumerate(times.items(), _FREQUENCIES.index("HOURLY")):
            if frequency < than:
                rule.setdefault(part, [value])
    columns: dict[str, Any] = {"rrule": _rule(_FREQUENCIES[frequency], rule), "timezone": timezone}
    if start is not None:
        columns["starts_at"] = start
    return When(columns, from_last_run=start is None, remarks=remarks), end


def _parts(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts of a rule other than its frequency, start and end."""
    rule: dict[str, Any] = {}
    if (fields.get("interval") or 1) != 1:
        rule["INTERVAL"] = int(fields["interval"])
    if fields.get("wkst") is not None:
        rule["WKST"] = _weekday(fields["wkst"])
    if fields.get("count") is not None:
        rule["COUNT"] = int(fields["count"])
    for part in _RULE_PARTS:
        value = fields.get(part.lower())
        values: list[Any] = value if isinstance(value, list) else [value]
        if value is not None and values and part == "BYWEEKDAY":
            rule["BYDAY"] = [_weekday(item) for item in values]
        elif value is not None and values:
            rule[part] = [int(item) for item in values]
    return rule


def _weekday(value: Any) -> str:
    return WEEKDAYS[value["wkday"] if isinstance(value, dict) else value]


def _timestamp(seconds: Any) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _zone_of(
    offset: timedelta, start: datetime | None, app_timezone: str | None
) -> tuple[str, tuple[str, ...]]:
    """Returns a zone that always has this offset, or the app's if it has it at the start."""
    if not offset:
        return "UTC", ()
    hours, rest = divmod(offset, timedelta(hours=1))
    minutes = abs(int(offset.total_seconds())) // 60
    shown = f"{'-' if offset < timedelta(0) else '+'}{minutes // 60:02}:{minutes % 60:02}"
    if not rest and -12 <= hours <= 14:
        name = f"Etc/GMT{-hours:+d}"
        return name, (
            f"RedBeat kept its start's offset {shown} and no zone, so its hours are in {name}; "
            "set timezone if they must follow the clocks of a place",
        )
    local = start and app_timezone and start.astimezone(known_zone(app_timezone))
    if app_timezone and local and local.utcoffset() == offset:
        return app_timezone, (f"its start's offset {shown} is taken for {app_timezone}",)
    raise Unmovable(
        f"RedBeat kept its start's offset {shown} and no zone, and no zone of whole hours has it; "
        "give the zone with --timezone"
    )


def _known(timezone: str) -> None:
    try:
        known_zone(timezone)
    except InvalidTimetable as error:
        raise Unmovable(f"its {error}") from None
