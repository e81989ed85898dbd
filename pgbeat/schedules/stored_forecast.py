"""The forecast of schedules in the database, as the command line and the API give it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection

from pgbeat.database import connections
from pgbeat.errors import InvalidInput, InvalidPlaceholder
from pgbeat.schedules import model as schedules
from pgbeat.schedules.calendars import model as calendars
from pgbeat.schedules.forecast import Call, Expected, Forecast, call, forecast, is_certain
from pgbeat.schedules.model import Schedule
from pgbeat.timetables import Timetable

#: Hours that a forecast covers, at most: a year.
MOST_HOURS = 8784


class StoredForecast(NamedTuple):
    """The forecast of schedules, and how their arguments are filled in."""

    rows: Sequence[Schedule]
    forecast: Forecast
    timetable: Callable[[Schedule], Timetable]
    timezone: str

    def call(self, due: Expected) -> tuple[Call | None, str | None]:
        """Returns the arguments of a due time's job, or what is wrong with the placeholders."""
        try:
            return call(due, self.timetable(due.schedule), self.timezone), None
        except InvalidPlaceholder as error:
            return None, str(error)

    def as_dict(self) -> dict[str, Any]:
        """Returns it with the names of fields that programs read."""
        result, rows = self.forecast, self.rows
        return {
            "from": result.start,
            "to": result.end,
            "total": result.total,
            "launches": result.launches,
            "uncertain": result.uncertain,
            "skipped": result.skipped,
            "peak": None if result.peak is None else result.peak._asdict(),
            "times": list(self._times()),
            "after": [
                {
                    "schedule": row.name,
                    "after": row.after,
                    "after_outcome": row.after_outcome,
                    "after_match": row.after_match,
                }
                for row in result.after
            ],
            "disabled": [row.name for row in rows if not row.enabled],
            "paused": [row.name for row in rows if row.enabled and row.paused_at is not None],
            "unknown": result.unknown,
        }

    def _times(self) -> Iterator[dict[str, Any]]:
        for due in self.forecast.times:
            launch_call, error = self.call(due)
            yield {
                "at": due.at,
                "due_at": due.due_at,
                "schedule": due.schedule.name,
                "certain": is_certain(due.schedule),
                "skip": due.skip,
                "note": due.note,
                "args": None if launch_call is None else launch_call.args,
                "kwargs": None if launch_call is None else launch_call.kwargs,
                "error": error,
            }


def forecast_stored(
    connection: Connection,
    namespace: str,
    timetable: Callable[[Schedule], Timetable],
    timezone: str,
    *,
    names: Iterable[str] = (),
    start: datetime | None = None,
    hours: float = 24,
    limit: int | None = None,
) -> StoredForecast:
    """Returns the forecast of all schedules of a namespace, or of those named.

    `timetable` returns a row's timetable, and may raise; `timezone` is for rows that name none. It
    is about `hours` from `start` on (by default, now); the first `limit` due times are listed.
    Raises `NotFound`, and `InvalidInput` for a start in the past or beyond the calendar.
    """
    now = connections.now(connection)
    names = list(dict.fromkeys(names))
    if names:
        rows = [schedules.get(connection, name, namespace=namespace) for name in names]
    else:
        rows = schedules.listing(connection, namespace=namespace)
    named = {row.calendar for row in rows if row.calendar is not None}
    known = calendars.load(connection, named, namespace=namespace)
    if start is not None and start < now:
        message = f"the start, {start.isoformat()}, is in the past; the history has the past"
        raise InvalidInput.of("start", "out_of_range", message)
    try:
        end = (start or now) + timedelta(hours=hours)
    except OverflowError:
        raise InvalidInput.of("start", "out_of_range", "the start is too late") from None
    result = forecast(rows, timetable, known, now, end, start=start, timezone=timezone, limit=limit)
    return StoredForecast(rows, result, timetable, timezone)
