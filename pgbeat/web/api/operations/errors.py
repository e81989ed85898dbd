"""`/errors`: why jobs failed, errors that are alike as one."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from pgbeat.monitoring.rollups import errors as domain
from pgbeat.web.api.bodies import Length, of_row
from pgbeat.web.calls import ViewerCall

router = APIRouter(tags=["jobs"])


@of_row(domain.ErrorPattern)
class ErrorGroup(BaseModel):
    """Failed jobs whose errors have the same pattern."""

    pattern: str = Field(
        description="The first line of their errors, with `*` for each value.",
        examples=["HTTPError: * Server Error for url: https://shop.example/*"],
    )
    jobs: int = Field(description="Failed jobs.", examples=[431])
    since: datetime = Field(
        description="When a job first failed so, as far back as 92 days, also before the span."
    )
    job_id: UUID = Field(description="The last of them; it may have been deleted since.")
    tasks: list[str] = Field(description="Those with most failures first.")
    schedules: list[str] = Field(description="Up to ten schedules that launched them.")
    counts: list[int] = Field(description="Failed jobs of each step of the span.")


@of_row(domain.ErrorReport)
class Errors(BaseModel):
    """The errors of jobs that failed, the most frequent first."""

    jobs: int = Field(description="All failed jobs of the span.")
    is_lower_bound: bool = Field(
        description="Whether more jobs may have failed, and more often by an error, than is said."
    )
    groups: list[ErrorGroup]
    has_more: bool = Field(description="Whether there are more groups than `limit`.")


@router.get("/errors", summary="Get the errors of failed jobs")
def get_errors(
    call: ViewerCall,
    task: Annotated[str | None, Query(max_length=200)] = None,
    since: Annotated[
        Length | datetime, Query(description="A time, or how long ago it was; at most 92 days.")
    ] = domain.SINCE,
    limit: Annotated[int, Query(ge=1, le=domain.MOST)] = domain.USUAL,
) -> Errors:
    """Returns why jobs failed, the most frequent errors first.

    Errors that differ only in their values are one: numbers, ids, times, quoted text. Of tasks
    whose errors are masked from the caller, those are one that look the same then.
    """
    mask = call.redactor.error
    with call.listing() as connection:
        errors = domain.errors(
            connection, call.namespace, task=task, since=since, limit=limit, mask=mask
        )
    return Errors.model_validate(errors, from_attributes=True)
