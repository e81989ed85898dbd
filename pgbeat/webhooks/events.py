"""The events that webhooks get: when each is sent, and the data that it has."""

from typing import NamedTuple


class Event(NamedTuple):
    """What an event says, for people who choose events and who write receivers."""

    when: str
    data: str


_RUN = "the execution, and its `job`"
_INCIDENT = (
    "and of what failed `failures` (their number), `failed` (their events), `failing_since`, "
    "`last_failed_at`, and `reason` if it can no longer fail"
)
#: By name; the schema's functions write them.
EVENTS = {
    "job.run.completed": Event("an execution completed", _RUN),
    "job.run.failed": Event("an execution failed, or its worker died (`lost`)", _RUN),
    "job.run.skipped": Event("an execution was skipped", _RUN),
    "job.failed": Event(
        "a job failed for good: no retry follows",
        "the job: what an execution's `job` has, `state`, `started_at`, `finished_at`, `worker`, "
        "`error`",
    ),
    "job.late": Event(
        "a job missed a deadline, one event for each of the two",
        "the job: what an execution's `job` has, `deadline` (`start` or `end`), `must_start_by`, "
        "`must_end_by`, `state`, `started_at`, `finished_at`, `worker`",
    ),
    "job.recovered": Event(
        "a job of a task without a schedule completed, and none has failed for 10 minutes",
        f"the job: what an execution's `job` has, `state`, `started_at`, `finished_at`, `worker`, "
        f"{_INCIDENT}",
    ),
    "group.ended": Event(
        "the last job of a group ended, with its retries",
        "the group: `id`, `name`, `mode`, `on_failure`, `state`, `created_by`, `created_at`, "
        "`finished_at`, `cancelled_by`, and `jobs`: how many ended in each state",
    ),
    "schedule.disabled": Event(
        "failures or a person disabled a schedule that is not complete",
        "the schedule: `id`, `name`, `task`, `owner`, `disabled_reason`, `retry_count`, "
        "`last_failure`, `last_error`",
    ),
    "schedule.paused": Event(
        "failed jobs or a person paused a schedule",
        "the schedule: `id`, `name`, `task`, `owner`, `labels`, `paused_at`, `paused_reason`, "
        "`pause_after_failures`, and of the last job that ended `last_job_id`, `last_job_state`, "
        "`last_job_error`",
    ),
    "schedule.stale": Event(
        "none of a schedule's jobs completed within its `fresh_within`",
        "the schedule: `id`, `name`, `task`, `owner`, `labels`, `fresh_within` (seconds), "
        "`stale_since`, `last_completed_at`",
    ),
    "schedule.recovered": Event(
        "a schedule whose jobs or decisions failed, or that was stale, is well again",
        f"the schedule: `id`, `name`, `task`, `owner`, `labels`, `last_completed_at`, {_INCIDENT}",
    ),
    "tick.failed": Event(
        "a schedule could not be launched: its condition, launcher or publishing failed",
        "the decision: `schedule`, `task`, `due_at`, `decided_at`, `outcome`, `trigger`, `error`",
    ),
    "tick.skipped": Event(
        "a due time was skipped, at most one event an hour for each schedule",
        "the decision: `schedule`, `task`, `due_at`, `decided_at`, `outcome`, `trigger`, "
        "`reason`, `skips` (how many since the last event), `since` (the time of that)",
    ),
}
