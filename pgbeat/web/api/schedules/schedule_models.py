"""Schedules in requests and responses."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Path
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    Field,
    WithJsonSchema,
)

from pgbeat.jobs.rows.model import State
from pgbeat.monitoring.schedule_health import MEANINGS, Code, Health, Severity
from pgbeat.schedules import AfterMatch, AfterOutcome, CatchUp, Overlap, ticks
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.ticks import Outcome, Trigger
from pgbeat.views import schedules as views
from pgbeat.web.api.bodies import (
    Body,
    Done,
    Length,
    Next,
    PlainJson,
    PlainList,
    example,
    of_row,
    plain,
)
from pgbeat.web.api.jobs.job_models import ExecutionFigures

#: A schedule's name in a path.
Name = Annotated[str, Path(max_length=200, examples=["category_refresh"])]


#: A name, or several, each of which becomes a line.
Names = Annotated[
    str,
    BeforeValidator(lambda value: "\n".join(value) if _is_texts(value) else value),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        mode="validation",
    ),
]


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


class ScheduleFields(Body):
    """A schedule's fields, with one of cron, every, once_at, solar, rrule and after."""

    launcher: str | None = Field(None, examples=["GenericLauncher"])
    task: str | None = Field(None, examples=["tasks.maintenance.backup"])
    args: PlainList | None = Field(None, examples=[["Production"]])
    kwargs: PlainJson | None = Field(None, examples=[{"backup_type": "full"}])
    options: PlainJson | None = Field(None, examples=[{"priority": 3}])
    queue: str | None = Field(None, examples=["maintenance"])
    condition_sql: str | None = Field(None, examples=["SELECT count(*) > 0 FROM orders"])
    cron: str | None = Field(None, examples=["0 */6 * * *"])
    every: Length | None = None
    once_at: AwareDatetime | None = None
    solar: str | None = Field(None, examples=["sunset 59.91 10.75"])
    rrule: str | None = Field(None, examples=["FREQ=WEEKLY;BYDAY=MO;BYHOUR=9;BYMINUTE=0"])
    after: Names | None = Field(
        None, description="The schedule whose jobs it follows, or several: a list, or lines."
    )
    after_outcome: AfterOutcome | None = None
    after_match: AfterMatch | None = None
    timezone: str | None = Field(None, examples=["Europe/Oslo"])
    starts_at: AwareDatetime | None = None
    ends_at: AwareDatetime | None = None
    max_runs: int | None = Field(None, ge=1, le=2**31 - 1)
    jitter: Length | None = None
    calendar: str | None = None
    catch_up: CatchUp | None = None
    catch_up_limit: int | None = Field(None, ge=1, le=10_000)
    grace: Length | None = None
    overlap: Overlap | None = None
    min_interval: Length | None = None
    max_retries: int | None = Field(None, ge=0, le=2**31 - 1)
    retry_base: Length | None = None
    retry_factor: float | None = Field(None, ge=1, le=1000)
    retry_cap: Length | None = None
    probe_after: Length | None = None
    pause_after_failures: int | None = Field(
        None, ge=1, le=1000, description="How many failed jobs in a row pause it; null for never."
    )
    fresh_within: Length | None = Field(
        None, description="It is stale if none of its jobs completes for so long."
    )
    check_in_url: str | None = Field(
        None,
        max_length=2000,
        description="Where each run is reported; `{start,success,failure}` in it has alternatives.",
        examples=[
            "https://hc-ping.com/0c8983c9-9d73-446f-adb7-0641fb1ab8b0{/start,,/fail}?rid={id}"
        ],
    )
    owner: str | None = Field(None, max_length=200, examples=["data-team"])
    description: str | None = Field(None, max_length=2000, examples=["Sends the invoices"])
    labels: dict[str, str] | None = Field(
        None,
        description="Names and values to find it by; its jobs have them too.",
        examples=[{"team": "billing"}],
    )
    metadata: PlainJson | None = Field(None, description="Anything else to keep with it.")
    job_policy: PlainJson | None = Field(
        None,
        description="The policy of its jobs: lane, priority, retries …",
        examples=[{"lane": "gpu", "max_attempts": 5}],
    )


class NewSchedule(ScheduleFields):
    """A new schedule. A null field is the same as a missing one."""

    model_config = example(
        {
            "name": "nightly_backup",
            "task": "tasks.maintenance.backup",
            "kwargs": {"backup_type": "full"},
            "cron": "0 2 * * *",
            "timezone": "Europe/Oslo",
        }
    )

    name: str = Field(min_length=1, max_length=200, examples=["category_refresh"])
    enabled: bool | None = Field(None, description="false: disabled until it is enabled.")
    paused: bool | None = Field(None, description="true: paused until it is resumed.")


class ScheduleChanges(ScheduleFields):
    """Changes of a schedule; null clears a field that may be empty."""

    model_config = example({"cron": "0 */2 * * *", "max_retries": 10, "enabled": True})

    enabled: bool | None = None


@of_row(Health, ("job_task",))
class ScheduleHealth(BaseModel):
    """Whether a schedule and its jobs succeed, in service or not."""

    code: Code = Field(
        description="; ".join(f"`{code}`: {about}" for code, about in MEANINGS.items()) + "."
    )
    severity: Severity
    summary: str = Field(examples=["6 jobs in a row failed, since 2026-11-21 04:54:00 UTC"])
    failures: int = Field(description="Failures in a row, counted up to 1,000.")
    error: str | None = Field(description="The error of the last failure.")
    reason: str | None = Field(description="Why the last tick was skipped, if it was.")


@of_row(Schedule, views.HIDDEN)
class FoundSchedule(BaseModel):
    """A schedule. Durations are seconds."""

    name: str = Field(examples=["category_refresh"])
    launcher: str = Field(examples=["CategoryRefreshLauncher"])
    cron: str | None = Field(examples=["0 */6 * * *"])
    state: Literal["active", "paused", "disabled", "completed"]
    health: ScheduleHealth
    completed_at: datetime | None = Field(
        description="When it was disabled because no due time was left."
    )
    probe_at: datetime | None = Field(description="When it is tried again, once disabled.")
    next_run: datetime | None = Field(description="When it is decided next.")
    due_at: datetime | None = Field(description="The due time that this is for.")
    waiting_for: UUID | None = Field(description="The job whose end it waits for.")
    stale_since: datetime | None = Field(
        description="Since when none of its jobs has completed within `fresh_within`."
    )
    cursor: Any = Field(description="What its launcher keeps.")


@of_row(ticks.JobOutcome, ("task",))
class TickJob(BaseModel):
    """A job of a tick, in the state of its last retry."""

    state: State | None = Field(description="null if the job was deleted.")


@of_row(ticks.Entry, views.UNTOLD)
class FoundTick(BaseModel):
    """A tick: the decision on one due time."""

    trigger: Trigger
    outcome: Outcome
    job_state: State | None
    jobs: list[TickJob] = Field(
        description="All of its jobs: a launcher may ask for several. `job_id`, `job_state` and "
        "`job_error` are those of the first."
    )
    started_at: datetime | None = Field(description="When the first of its jobs began.")
    finished_at: datetime | None = Field(description="When the last of its jobs ended.")
    duration_ms: float | None = Field(description="From the one to the other.")


@of_row(ticks.Stats)
class TickStats(BaseModel):
    """Counts of a schedule's ticks and their jobs, as far back as they are kept."""

    jobs_completed: int = Field(description="The last attempt counts.")
    success_rate: float | None = Field(
        description="The share of completed jobs among the ended jobs and the failed ticks, 0 to "
        "1.",
        examples=[0.75],
    )


class RecentJob(BaseModel):
    """A job of a schedule."""

    id: UUID
    state: State
    created_at: datetime
    finished_at: datetime | None


class LastCheckIn(BaseModel):
    """The last request to a schedule's `check_in_url`."""

    status: Literal["start", "ok", "fail"]
    state: Literal["pending", "delivered", "failed"]
    created_at: datetime
    error: str | None


class ScheduleDetail(FoundSchedule):
    """A schedule with its newest jobs, and statistics of their executions."""

    recent_jobs: list[RecentJob]
    last_tick: FoundTick | None
    runs: ExecutionFigures
    last_check_in: LastCheckIn | None


class SchedulePage(BaseModel):
    """A page of schedules, by name."""

    schedules: list[FoundSchedule]
    next: Next


class ScheduleDone(Done):
    """Confirms a change of a schedule."""

    message: str = Field(examples=["Schedule 'category_refresh' enabled"])
    next_run: datetime | None = Field(default=None, description="When it is due next.")
    note: str | None = Field(default=None, description="A caveat.")


class PauseReason(Body):
    """The reason for a pause."""

    reason: str | None = Field(
        None, min_length=1, max_length=2000, examples=["the warehouse is being moved"]
    )


class SchedulesSwitched(BaseModel):
    """The schedules that were paused or resumed together."""

    schedules: list[str] = Field(description="Their names.")


class ScheduleCursor(Body):
    """A launcher's cursor: any JSON that it keeps from one tick to the next."""

    cursor: Annotated[Any, AfterValidator(plain)] = Field(examples=[{"last_id": 4711}])
