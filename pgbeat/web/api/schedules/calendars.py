"""`/calendars`: named rules for the times at which schedules are skipped."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import AwareDatetime, BaseModel, Field
from sqlalchemy import Connection

from pgbeat.database import connections
from pgbeat.schedules.calendars import control as calendar_control
from pgbeat.schedules.calendars import model as calendars
from pgbeat.views import definitions as views
from pgbeat.web.api.bodies import Body, Done, Json, PlainJson, example, of_row
from pgbeat.web.calls import AdminCall, TheCall, WebCall

router = APIRouter(prefix="/calendars", tags=["calendars"])

CalendarName = Annotated[str, Path(max_length=200, examples=["office"])]
_EXAMPLE: Any = {"weekdays": ["sat", "sun"], "holidays": {"country": "NO"}}


class CalendarFields(Body):
    """A calendar's definition."""

    model_config = example({"definition": _EXAMPLE})

    definition: PlainJson = Field(
        description="timezone, dates, weekdays, holidays, windows and only, each optional.",
        examples=[_EXAMPLE],
    )


class NewCalendar(CalendarFields):
    """A new calendar."""

    model_config = example({"name": "office", "definition": _EXAMPLE})

    name: str = Field(min_length=1, max_length=200, examples=["office"])


@of_row(calendars.Calendar)
class FoundCalendar(BaseModel):
    """A calendar."""

    definition: Json
    rules: str | None = Field(
        description="The definition in words; null if it can't be read.",
        examples=["not Saturday, Sunday; not holidays of NO"],
    )
    problem: str | None = Field(description="Why it can't be read, such as a missing package.")


class CalendarDetail(FoundCalendar):
    """A calendar with the schedules that use it."""

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
    timezone: str = Field(description="The time zone of the rules.", examples=["Europe/Oslo"])
    excluded: bool
    reason: str | None = Field(examples=["calendar 'office': Saturday"])


def _users(connection: Connection, call: WebCall) -> dict[str, list[str]]:
    return calendars.users(connection, namespace=call.namespace) if call.caller.sees_all else {}


@router.get("", summary="List calendars")
def list_calendars(call: TheCall) -> CalendarList:
    """Lists all calendars by name."""
    with call.backend.transaction() as connection:
        rows = calendars.listing(connection, namespace=call.namespace)
        users = _users(connection, call)
    return CalendarList(
        calendars=[CalendarDetail.model_validate(views.calendar(row, users)) for row in rows]
    )


@router.get("/{name}", summary="Get a calendar")
def get_calendar(call: TheCall, name: CalendarName) -> CalendarDetail:
    """Returns a calendar."""
    with call.backend.transaction() as connection:
        row = calendars.get(connection, name, namespace=call.namespace)
        users = _users(connection, call)
    return CalendarDetail.model_validate(views.calendar(row, users))


@router.get("/{name}/check", summary="Check whether a calendar excludes a time")
def check_calendar(
    call: TheCall,
    name: CalendarName,
    at: Annotated[AwareDatetime | None, Query(description="By default, now.")] = None,
    timezone: Annotated[
        str | None,
        Query(
            max_length=100,
            description="The schedule's, for a calendar without one. By default, the app's.",
        ),
    ] = None,
) -> CalendarCheck:
    """Says whether a schedule that names the calendar is skipped at a time, and why."""
    with call.backend.transaction() as connection:
        row = calendars.get(connection, name, namespace=call.namespace)
        moment = at or connections.now(connection)
    check = views.calendar_check(row, moment, timezone or call.backend.timezone)
    return CalendarCheck.model_validate(check)


@router.post("", status_code=201, summary="Create a calendar")
def create_calendar(call: AdminCall, body: NewCalendar) -> FoundCalendar:
    """Creates a calendar."""
    with call.unit() as unit:
        row, _ = calendar_control.put(unit, body.name, body.definition, only_new=True)
    return FoundCalendar.model_validate(views.calendar(row, {}))


@router.put(
    "/{name}",
    summary="Create or replace a calendar",
    responses={201: {"model": FoundCalendar, "description": "It is new."}},
)
def put_calendar(
    call: AdminCall, name: CalendarName, body: CalendarFields, response: Response
) -> FoundCalendar:
    """Creates a calendar, or replaces its definition, from the next due time of each schedule."""
    with call.unit() as unit:
        row, is_new = calendar_control.put(unit, name, body.definition)
    if is_new:
        response.status_code = 201
    return FoundCalendar.model_validate(views.calendar(row, {}))


@router.delete("/{name}", summary="Delete a calendar")
def delete_calendar(call: AdminCall, name: CalendarName) -> Done:
    """Deletes a calendar that no schedule names."""
    with call.unit() as unit:
        calendar_control.remove(unit, name)
    return Done(message=f"Calendar '{name}' deleted")
