"""`/forecast`: what will be due when, of all schedules."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from pgbeat.schedules import entries
from pgbeat.schedules.forecast import MinuteLoad
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.stored_forecast import forecast_stored
from pgbeat.timetables import Timetable
from pgbeat.web.api.bodies import of_row
from pgbeat.web.calls import ViewerCall

router = APIRouter(tags=["scheduler"])


@of_row(MinuteLoad)
class ForecastMinute(BaseModel):
    """How many schedules are due in a minute, without those that are skipped."""

    uncertain: int = Field(description="A condition or a launcher decides.")


class ForecastTime(BaseModel):
    """A due time to come."""

    at: datetime = Field(description="When beat decides it.")
    due_at: datetime = Field(description="Its time by the timetable.")
    schedule: str
    certain: bool = Field(description="Whether time alone decides that it is launched.")
    skip: str | None = Field(description="Why it will be skipped, if that is known.")
    note: str | None
    args: list[Any] | None = Field(description="With placeholders filled in.")
    kwargs: dict[str, Any] | None
    error: str | None = Field(description="What is wrong with the placeholders.")


class ForecastAfter(BaseModel):
    """A schedule that is launched after another one's jobs."""

    schedule: str
    after: str
    after_outcome: str
    after_match: str


class SchedulesForecast(BaseModel):
    """What is due from one time until before another, if beat is on time and nothing is changed."""

    model_config = ConfigDict(populate_by_name=True)

    start: datetime = Field(alias="from")
    end: datetime = Field(alias="to")
    total: int = Field(description="All due times, also those that are not listed.")
    launches: int
    uncertain: int
    skipped: int
    peak: ForecastMinute | None = Field(description="The busiest minute.")
    times: list[ForecastTime] = Field(description="The first due times, in order.")
    after: list[ForecastAfter]
    disabled: list[str]
    paused: list[str]
    unknown: dict[str, str] = Field(description="Why nothing is known of some schedules.")


@router.get("/forecast", summary="Forecast all schedules")
def get_forecast(
    call: ViewerCall,
    schedule: Annotated[
        list[str] | None, Query(max_length=100, description="Only these schedules.")
    ] = None,
    start: Annotated[AwareDatetime | None, Query(description="By default, now.")] = None,
    hours: Annotated[float, Query(gt=0, le=31 * 24)] = 24,
    limit: Annotated[int, Query(ge=0, le=1000, description="How many times to list.")] = 50,
) -> SchedulesForecast:
    """Lists which schedules will be due in a span, when, and how many at a time."""
    app = call.backend.celery

    def timetable(row: Schedule) -> Timetable:
        stored = row.timetable(call.backend.timezone)
        return stored or entries.code_timetable(app, row, entries.built_in(app))

    with call.backend.transaction() as connection:
        stored = forecast_stored(
            connection,
            call.namespace,
            timetable,
            call.backend.timezone,
            names=schedule or (),
            start=start,
            hours=hours,
            limit=limit,
        )
    answer, redactor = stored.as_dict(), call.redactor
    for shown, due in zip(answer["times"], stored.forecast.times, strict=True):
        task = due.schedule.task
        shown["args"] = shown["args"] and redactor.args(task, shown["args"])
        shown["kwargs"] = shown["kwargs"] and redactor.kwargs(task, shown["kwargs"])
    return SchedulesForecast.model_validate(answer)
