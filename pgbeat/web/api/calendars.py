"""`/calendars`: named rules that leave out times of the schedules that name them."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from pgbeat.database import connections
from pgbeat.errors import InvalidCalendar
from pgbeat.schedules import calendar_control, calendars
from pgbeat.schedules.calendars import Calendar
from pgbeat.timetables import zone
from pgbeat.web.api.bodies import Body, Json
from pgbeat.web.api.steering import plain
from pgbeat.web.backend import TheBackend
from pgbeat.web.identity import TheAdmin, TheCaller

router = APIRouter(prefix="/calendars", tags=["calendars"])

CalendarName = Annotated[str, Path(max_length=200, examples=["office"])]
_EXAMPLE: Any = {"weekdays": ["sat", "sun"], "holidays": {"country": "NO"}}


class CalendarFields(Body):
    """All that a calendar says."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"definition": _EXAMPLE}]})

    definition: Annotated[Json, AfterValidator(plain)] = Field(
        description="timezone, dates, weekdays, holidays, windows and only; each may be left out.",
        examples=[_EXAMPLE],
    )


class NewCalendar(CalendarFields):
    """A calendar that is to be made."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "office", "definition": _EXAMPLE}]}
    )

    name: str = Field(min_length=1, max_length=200, examples=["office"])


class FoundCalendar(BaseModel):
    """A calendar."""

    name: str
    definition: Json
    rules: str | None = Field(
        description="What the definition means, in words; null where it can't be read.",
        examples=["not Saturday, Sunday; not holidays of NO"],
    )
    problem: str | None = Field(description="Why it can't be read, such as a missing package.")
    created_at: datetime
    updated_at: datetime


class CalendarDetail(FoundCalendar):
    """A calendar with what uses it."""

    schedules: list[str] = Field(
        description="Schedules that name it; for administrators, else empty."
    )


class CalendarList(BaseModel):
    """All calendars, by name."""

    calendars: list[CalendarDetail]


class CalendarCheck(BaseModel):
    """Whether a calendar excludes a time."""

    calendar: str
    at: datetime = Field(description="The time, in UTC.")
    timezone: str = Field(description="Whose clock counts.", examples=["Europe/Oslo"])
    excluded: bool
    reason: str | None = Field(examples=["calendar 'office': Saturday"])


class CalendarDone(BaseModel):
    """That it was done."""

    success: bool = True
    message: str


def shown(row: Calendar) -> Json:
    """Returns a calendar as answers show it."""
    rules, problem = None, None
    try:
        rules = str(row.rules)
    except InvalidCalendar as error:
        problem = str(error)
    return {
        "name": row.name, "definition": row.definition, "rules": rules, "problem": problem,
        "created_at": row.created_at, "updated_at": row.updated_at,
    }  # fmt: skip


def _detail(row: Calendar, users: dict[str, list[str]]) -> CalendarDetail:
    return CalendarDetail.model_validate(shown(row) | {"schedules": users.get(row.name, [])})


@router.get("", summary="List calendars")
def list_calendars(backend: TheBackend, caller: TheCaller) -> CalendarList:
    """All calendars, by name."""
    with backend.transaction() as connection:
        rows = calendars.listing(connection, namespace=backend.namespace)
        users = {}
        if caller.is_admin:
            users = calendars.users(connection, namespace=backend.namespace)
    return CalendarList(calendars=[_detail(row, users) for row in rows])


@router.get("/{name}", summary="Get a calendar")
def get_calendar(backend: TheBackend, caller: TheCaller, name: CalendarName) -> CalendarDetail:
    """A calendar."""
    with backend.transaction() as connection:
        row = calendars.get(connection, name, namespace=backend.namespace)
        users = {}
        if caller.is_admin:
            users = calendars.users(connection, namespace=backend.namespace)
    return _detail(row, users)


@router.get("/{name}/check", summary="Ask whether a calendar excludes a time")
def check_calendar(
    backend: TheBackend,
    caller: TheCaller,
    name: CalendarName,
    at: Annotated[AwareDatetime | None, Query(description="Now, if it isn't given.")] = None,
    timezone: Annotated[
        str | None,
        Query(max_length=100, description="Of the schedule, for a calendar without; the app's."),
    ] = None,
) -> CalendarCheck:
    """Says whether a schedule that names the calendar would be skipped at a time, and why."""
    with backend.transaction() as connection:
        row = calendars.get(connection, name, namespace=backend.namespace)
        moment = at or connections.now(connection)
    local = row.rules.zone or zone(timezone or backend.timezone)
    reason = row.exclusion(moment, local.key)
    return CalendarCheck(
        calendar=row.name, at=moment.astimezone(UTC), timezone=local.key,
        excluded=reason is not None, reason=reason,
    )  # fmt: skip


@router.post("", status_code=201, summary="Make a calendar")
def create_calendar(backend: TheBackend, caller: TheAdmin, body: NewCalendar) -> FoundCalendar:
    """Makes a calendar."""
    with backend.unit(caller) as unit:
        row, _ = calendar_control.put(unit, body.name, body.definition, only_new=True)
    return FoundCalendar.model_validate(shown(row))


@router.put(
    "/{name}",
    summary="Make a calendar, or have it be just this",
    responses={201: {"model": FoundCalendar, "description": "It is new."}},
)
def put_calendar(
    backend: TheBackend,
    caller: TheAdmin,
    name: CalendarName,
    body: CalendarFields,
    response: Response,
) -> FoundCalendar:
    """Makes a calendar, or gives the one of that name this definition, which counts from the next
    due time of each schedule on."""
    with backend.unit(caller) as unit:
        row, is_new = calendar_control.put(unit, name, body.definition)
    if is_new:
        response.status_code = 201
    return FoundCalendar.model_validate(shown(row))


@router.delete("/{name}", summary="Delete a calendar")
def delete_calendar(backend: TheBackend, caller: TheAdmin, name: CalendarName) -> CalendarDone:
    """Deletes a calendar that no schedule names."""
    with backend.unit(caller) as unit:
        calendar_control.remove(unit, name)
    return CalendarDone(message=f"Calendar '{name}' deleted")
