"""Celery's kinds of schedule (crontab, interval, solar, RedBeat's rrule) as timetables of rows."""

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

_LONGEST = timedelta(days=36_500)
_SECOND, _MINUTE = timedelta(seconds=1), timedelta(minutes=1)
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
_WEEKDAYS = ("SU", "MO", "TU", "WE", "TH", "FR", "SA")


class Unmovable(Exception):
    """Why something of another store can't be said in a row; the message is for people."""


@dataclass(frozen=True, slots=True)
class When:
    """When a schedule is due, in columns of its row."""

    #: Of cron, every, once_at, solar, rrule just one, with the timezone that it is in; `starts_at`
    #: where the other store has one.
    columns: Mapping[str, Any]
    #: Whether it counts from its last run, which then goes into `starts_at` …
    from_last_run: bool = False
    #: … rounded down, in its zone, to whole ones of these.
    unit: timedelta | None = None
    remarks: tuple[str, ...] = field(default=())

    def starts_at(self, base: datetime | None) -> datetime | None:
        """The row's `starts_at`, for a schedule that ran, or was waited for, since `base`.

        A start that is over says nothing any more about what counts from its last run.
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
    """An app that is never connected: Celery's crontabs are read in an app's zone."""
    app = Celery("pgbeat.moving", broker="memory://", set_as_current=False)
    app.conf.timezone = timezone
    return app


def of_crontab(timezone: str, fields: Mapping[str, Any]) -> When:
    """A crontab, by the names that Celery gives its fields, in a zone. Raises `Unmovable`.

    Where both day of month and day of week are given, Celery wants both to match and cron either.
    A recurrence rule wants both too: such a crontab becomes one.
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
        "BYDAY": [_WEEKDAYS[day] for day in sorted(value.day_of_week)],
        "BYHOUR": value.hour,
        "BYMINUTE": value.minute,
        "BYSECOND": [0],
    }
    if len(value.month_of_year) == 12:
        del by["BYMONTH"]
    return When({"rrule": _rule("MONTHLY", by), "timezone": timezone}, from_last_run=True)


def _plain(field: Any) -> Any:
    """A field of a crontab; text without the spaces that Celery's parser stumbles over."""
    return field.replace(" ", "") if isinstance(field, str) else field


def _rule(frequency: str, by: Mapping[str, Any]) -> str:
    parts = [f"FREQ={frequency}"]
    for name, value in by.items():
        values = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
        values = values if name == "BYDAY" else sorted(values)
        parts.append(f"{name}={','.join(map(str, values))}")
    return ";".join(parts)


def of_interval(every: timedelta, *, relative: bool = False, timezone: str | None = None) -> When:
    """A fixed interval from one run to the next; `relative` ones are rounded to whole days, hours,
    minutes or seconds in a zone. Raises `Unmovable`."""
    if not timedelta(0) < every <= _LONGEST:
        raise Unmovable(f"its interval is {every}; a row's is longer than 0, at most 36500 days")
    if not relative:
        return When({"every": every}, from_last_run=True)
    unit = next((unit for unit in (_DAY, _HOUR, _MINUTE) if every >= unit), _SECOND)
    if every % unit:
        raise Unmovable(
            f"its interval is {every}, rounded to whole ones of {unit} (relative), so that the "
            "times between its runs differ; a row's every can't say that"
        )
    if timezone is None:
        raise Unmovable("it is relative, rounded in a time zone that its store doesn't tell")
    _known(timezone)
    return When({"every": every, "timezone": timezone}, from_last_run=True, unit=unit)


def of_solar(event: Any, latitude: Any, longitude: Any) -> When:
    """An event of the sun's at a place, in degrees. Raises `Unmovable`."""
    if event not in celery_solar._all_events:
        raise Unmovable(f"its solar event is {event!r}, which Celery has not")
    try:
        place = [_degrees(float(value)) for value in (latitude, longitude)]
    except (TypeError, ValueError):
        raise Unmovable(f"its place is {latitude!r}, {longitude!r}, which is none") from None
    return When({"solar": " ".join([event, *place])})


def _degrees(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


_FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
#: dateutil's weekdays begin with Monday.
_DATEUTIL_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_RULE_PARTS = {
    "bysetpos": "BYSETPOS",
    "bymonth": "BYMONTH",
    "bymonthday": "BYMONTHDAY",
    "byyearday": "BYYEARDAY",
    "byeaster": "BYEASTER",
    "byweekno": "BYWEEKNO",
    "byweekday": "BYDAY",
    "byhour": "BYHOUR",
    "byminute": "BYMINUTE",
    "bysecond": "BYSECOND",
}


def of_rrule(fields: Mapping[str, Any], app_timezone: str | None) -> tuple[When, datetime | None]:
    """A rule as RedBeat writes it down, and its end. Raises `Unmovable`.

    RedBeat keeps the offset of a rule's start from UTC, and not the zone that it was of.
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
        # The row's rule has no DTSTART that would fill in what it leaves open.
        local = start.astimezone(known_zone(timezone))
        times = {"BYHOUR": local.hour, "BYMINUTE": local.minute, "BYSECOND": local.second}
        for than, (part, value) in enumerate(times.items(), _FREQUENCIES.index("HOURLY")):
            if frequency < than:
                rule.setdefault(part, [value])
    columns: dict[str, Any] = {
        "rrule": _rule(_FREQUENCIES[frequency], rule),
        "timezone": timezone,
    }
    if start is not None:
        columns["starts_at"] = start
    return When(columns, from_last_run=start is None, remarks=remarks), end


def _parts(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a rule says besides its frequency, its start and its end."""
    rule: dict[str, Any] = {}
    if (fields.get("interval") or 1) != 1:
        rule["INTERVAL"] = int(fields["interval"])
    if fields.get("wkst") is not None:
        rule["WKST"] = _weekday(fields["wkst"])
    if fields.get("count") is not None:
        rule["COUNT"] = int(fields["count"])
    for name, part in _RULE_PARTS.items():
        value = fields.get(name)
        values: list[Any] = value if isinstance(value, list) else [value]
        if value is not None and values:
            rule[part] = [_weekday(item) if part == "BYDAY" else int(item) for item in values]
    return rule


def _weekday(value: Any) -> str:
    return _DATEUTIL_WEEKDAYS[value["wkday"] if isinstance(value, dict) else value]


def _timestamp(seconds: Any) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _zone_of(
    offset: timedelta, start: datetime | None, app_timezone: str | None
) -> tuple[str, tuple[str, ...]]:
    """A zone that always has this offset, else the app's where it has it at the start."""
    if not offset:
        return "UTC", ()
    hours, rest = divmod(offset, timedelta(hours=1))
    minutes = abs(int(offset.total_seconds())) // 60
    shown = f"{'-' if offset < timedelta(0) else '+'}{minutes // 60:02}:{minutes % 60:02}"
    if not rest and -12 <= hours <= 14:
        name = f"Etc/GMT{-hours:+d}"
        return name, (
            f"RedBeat kept its start's offset {shown} and no zone, so its hours are in {name}; "
            "set timezone if they are to follow the clocks of a place",
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
