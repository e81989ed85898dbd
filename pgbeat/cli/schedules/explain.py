"""`pgbeat explain`: why a schedule did or didn't run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import click
from rich.text import Text
from sqlalchemy import Connection

from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.printing import line, relative, span, when
from pgbeat.cli.terminal.target import Target, on_named
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.database.locks import advisory_locks
from pgbeat.database.locks.advisory_locks import LockHolder
from pgbeat.errors import NotFound
from pgbeat.jobs.explaining import explain as whereabouts
from pgbeat.jobs.explaining.explain import Whereabouts
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.states import retries
from pgbeat.monitoring import beats, schedule_health
from pgbeat.monitoring.schedule_health import Health
from pgbeat.schedules import model as schedules
from pgbeat.schedules import ticks, upstreams
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.ticks import Entry, JobOutcome
from pgbeat.views import schedules as views

#: A running beat decides sooner than this, apart from conditions.
_PROMPT = timedelta(seconds=2)
#: Causes of jobs that are as they should be.
_ON_ITS_WAY = ("running", "queue", "outbox", "ended")
#: Advice where the end of a job counts.
_WORKERS = "The end of a job is known if its worker tracks (pgbeat_track)."


@dataclass(frozen=True, slots=True)
class _Explanation:
    """Why a schedule is where it is: a word for programs, a sentence, and what to do."""

    cause: str
    summary: str
    advice: str = ""

    def with_job(self, job: "_UnfinishedJob") -> "_Explanation":
        """Adds why the schedule's job has not ended, unless it is as it should be."""
        if self.cause == "overlap":
            summary = f"{self.summary} That one {line(job.where.sentence)}."
            return replace(self, summary=summary, advice=job.where.advice or self.advice)
        if job.where.cause in _ON_ITS_WAY:
            return self
        summary = f"{self.summary} The job that it launched {line(job.where.sentence)}."
        return replace(self, summary=summary)._advised(job.where.advice)

    def with_health(self, health: Health) -> "_Explanation":
        """Adds the trouble of the schedule's jobs: they may fail although it is on time."""
        if health.code not in ("stale", "failing", "waiting", "never_launched"):
            return self
        last = ""
        if health.job_id is not None:
            last = f"`pgbeat jobs show {health.job_id}` shows the last one."
        if health.error is not None and line(health.error) in self.summary:
            return self._advised(last)  # paused for it
        advice, summary = "", f"{self.summary} Its jobs: {line(health.summary)}."
        if health.code == "waiting":
            advice = "Is there a worker for its queue? `pgbeat queues` shows them."
        elif health.code in ("stale", "never_launched"):
            advice = "`pgbeat history` has the reasons."
            summary = f"{self.summary} But {line(health.summary)}."
        return replace(self, summary=summary)._advised(advice, last)

    def _advised(self, *advice: str | None) -> "_Explanation":
        return replace(self, advice=" ".join(filter(None, (self.advice, *advice))))


@dataclass(frozen=True, slots=True)
class _UnfinishedJob:
    """The job that is waited for, or that of the last tick, and why it has not ended."""

    job: Job
    where: Whereabouts

    def as_json(self) -> dict[str, object]:
        """Returns the job for programs."""
        columns = ("id", "state", "attempt", "lane", "run_at")
        return {name: getattr(self.job, name) for name in columns} | self.where._asdict()


@dataclass(frozen=True, slots=True)
class _Situation:
    """What a schedule's state depends on, in one snapshot."""

    row: Schedule
    now: datetime
    #: The last tick.
    last: Entry | None
    #: The job that has not ended.
    job: _UnfinishedJob | None
    health: Health
    #: The beat that leads.
    leader: LockHolder | None
    lock_key: int
    #: How many schedules are due.
    backlog: int
    #: How long a condition may take.
    patience: timedelta
    #: A sentence on the schedule that it comes after.
    upstream: str

    @classmethod
    def read(cls, connection: Connection, name: str, settings: Settings) -> "_Situation":
        """Reads the situation of a schedule. Raises `NotFound`."""
        now = connections.now(connection)
        row = schedules.get(connection, name, namespace=settings.namespace)
        last = next(iter(ticks.history(connection, row.id, limit=1)), None)
        patience = beats.patience(settings)
        holders = advisory_locks.holders(connection, settings.leader_key)
        return cls(
            row=row,
            now=now,
            last=last,
            job=_unfinished(connection, row, last, now),
            health=schedule_health.of_schedule(connection, row, patience),
            leader=next((holder for holder in holders if holder.leads), None),
            lock_key=settings.leader_key,
            backlog=schedules.count(connection, namespace=settings.namespace)["due"],
            patience=timedelta(seconds=settings.condition_timeout),
            upstream=_upstream(connection, row, now),
        )


@click.command("explain")
@on_named
def explain_command(target: Target, name: str) -> None:
    """Say why a schedule did or didn't run, and what to do about it.

    Its JSON has `schedule`, `cause`, `summary`, `advice`, `health`, `next_run`, `last_tick`, `job`
    and `leader`.
    """
    with target.transaction() as connection:
        situation = _Situation.read(connection, name, target.settings)
    explanation = _explain(situation)
    if situation.job is not None:
        explanation = explanation.with_job(situation.job)
    explanation = explanation.with_health(situation.health)
    if printing.is_json():
        printing.echo_json(_json(situation, explanation))
        return
    click.echo(f"{line(situation.row.name)}: {explanation.summary}")
    if explanation.advice:
        click.echo(explanation.advice)
    click.echo()
    _show(situation, target.timezone)


def _json(situation: _Situation, explanation: _Explanation) -> dict[str, Any]:
    return {
        "schedule": situation.row.name,
        "cause": explanation.cause,
        "summary": explanation.summary,
        "advice": explanation.advice or None,
        "health": views.health(situation.health),
        "next_run": situation.row.next_run,
        "last_tick": situation.last and views.tick(situation.last),
        "job": situation.job and situation.job.as_json(),
        "leader": situation.leader,
    }


def _show(situation: _Situation, timezone: str) -> None:
    row, now, last = situation.row, situation.now, situation.last
    waits = row.enabled and row.paused_at is None
    printing.show_facts(
        None,
        ("health", printing.health(situation.health, in_full=True)),
        ("last tick", _last(last, now)),
        ("its job", _job(last, situation.job)),
        ("next run", when(row.next_run, now) if waits else None),
        ("timetable", printing.timetable(row, timezone)),
        ("window", printing.window(row, now)),
        ("calendar", row.calendar),
        ("condition", row.condition_sql if row.launcher == "GenericLauncher" else row.launcher),
        ("beat", "none" if situation.leader is None else _beat(situation.leader)),
    )


def _explain(situation: _Situation) -> _Explanation:
    """Returns the first reason that applies: the row's own, then the beat's, then the time."""
    row, now = situation.row, situation.now
    if not row.enabled:
        return _disabled(row, now)
    if row.paused_at is not None:
        why = "" if row.paused_reason is None else f": {line(row.paused_reason)}"
        return _Explanation(
            "paused",
            f"it is paused, since {when(row.paused_at, now)}{why}.",
            f"`pgbeat resume {row.name}` lets it launch.",
        )
    is_due = row.next_run is not None and row.next_run <= now
    if situation.leader is None:
        due = f"it has been due for {span(now - (row.next_run or now))}, but"
        return _Explanation(
            "no_beat",
            f"{due if is_due else 'it waits:'} no beat runs (no session holds lock "
            f"{situation.lock_key}).",
            "Start one: celery -A APP beat -S pgbeat.Scheduler",
        )
    if row.waiting_for is not None:
        return _Explanation(
            "overlap",
            f"it has been due for {span(now - (row.due_at or now))}, and waits for the job before "
            f"it, {row.waiting_for}, to end (overlap {row.overlap}).",
            _WORKERS,
        )
    if row.next_run is None and row.after is not None:
        return _Explanation("after", situation.upstream, _WORKERS)
    if row.next_run is None:
        return _new(row, now)
    return _late(situation) if is_due else _early(row, row.next_run, now)


def _unfinished(
    connection: Connection, row: Schedule, last: Entry | None, now: datetime
) -> _UnfinishedJob | None:
    """Returns the job that the schedule waits for, else its last one, unless that has ended."""
    job_id = row.waiting_for
    if job_id is None and last is not None:
        job_id = next((outcome.id for outcome in last.jobs if not outcome.has_ended), last.job_id)
    job = None if job_id is None else retries.last_attempt(connection, job_id)
    if job is None or job.has_ended:
        return None
    return _UnfinishedJob(job, whereabouts.of_job(connection, job, now))


def _disabled(row: Schedule, now: datetime) -> _Explanation:
    reason, name = line(row.disabled_reason or "no reason given"), row.name
    if row.completed is not None:
        again = f"`pgbeat enable {name}` lets it begin again."
        if row.max_runs is None or row.run_count < row.max_runs:
            again = (
                f"`pgbeat update {name}` gives it another time, then `pgbeat enable {name}` "
                "enables it."
            )
        return _Explanation("completed", f"it is done: {line(row.completed)}.", again)
    advice = f"`pgbeat enable {name}` enables it."
    if row.probe_at is not None:
        advice = f"It is tried again {relative(row.probe_at, now)}. {advice}"
    return _Explanation("disabled", f"it is disabled: {reason}.", advice)


def _upstream(connection: Connection, row: Schedule, now: datetime) -> str:
    """Returns a sentence on the schedule that this one comes after; "" if it comes after none."""
    if row.after is None:
        return ""
    waits = f"it comes {printing.timetable(row)}"
    names = upstreams(row.after)
    if len(names) > 1:
        known = schedules.named(connection, names, namespace=row.namespace)
        return f"{waits}: {', '.join(_upstream_of(row, name, known) for name in names)}."
    try:
        before = schedules.get(connection, row.after, namespace=row.namespace)
    except NotFound as error:
        return f"{waits}, and {error}."
    if not before.enabled or before.paused_at is not None:
        return f"{waits}, which is {printing.state(before)}."
    for tick in ticks.history(connection, before.id, limit=1):
        job = "" if tick.job_id is None else f", and its job is {tick.job_state or 'gone'}"
        if len(tick.jobs) > 1:
            job = f", with {ticks.summary(tick.jobs)}"
        verb = "was skipped" if tick.outcome == "skipped" else tick.outcome
        return f"{waits}, which {verb} {relative(tick.decided_at, now)}{job}."
    return f"{waits}, which has not been due yet."


def _upstream_of(row: Schedule, name: str, known: Mapping[str, Schedule]) -> str:
    """Returns what is known of one of several schedules that a schedule comes after."""
    other = known.get(name)
    state = "has not ended yet"
    if name in row.after_done:
        state = "has ended"
    elif other is None:
        state = "is not there"
    elif not other.enabled or other.paused_at is not None:
        state = f"is {printing.state(other)}"
    return f"{line(name)} {state}"


def _new(row: Schedule, now: datetime) -> _Explanation:
    if now - row.updated_at <= _PROMPT:
        return _Explanation("new", "it has just been changed; the beat will compute its next time.")
    return _Explanation(
        "behind",
        f"the beat has not computed its next time, {span(now - row.updated_at)} after the change.",
        "It is busy, or hangs: see its log, and `pgbeat doctor`.",
    )


def _early(row: Schedule, next_run: datetime, now: datetime) -> _Explanation:
    soon = relative(next_run, now)
    if row.retry_count:
        return _Explanation(
            "retry",
            f"it failed {row.retry_count} of {row.max_retries} times in a row and is tried "
            f"again {soon}: {line(row.last_error)}",
            f"`pgbeat trigger {row.name}` tries it now.",
        )
    if row.due_at is not None and row.due_at <= now:
        return _Explanation(
            "jitter",
            f"its time was {span(now - row.due_at)} ago, and its jitter (up to "
            f"{span(row.jitter)}) delays it; it comes {soon}.",
        )
    return _Explanation("not_due", f"it is not due yet; next {soon}.")


def _late(situation: _Situation) -> _Explanation:
    row, patience = situation.row, situation.patience
    late = situation.now - (row.next_run or situation.now)
    if late <= _PROMPT:
        return _Explanation("due", "it is due this moment.")
    conditional = row.launcher != "GenericLauncher" or row.condition_sql is not None
    if conditional and late <= patience + _PROMPT:
        return _Explanation(
            "condition",
            f"it has been due for {span(late)}; its condition is being checked, for "
            f"{span(patience)} at most.",
        )
    others = f"; {situation.backlog} schedules are due" if situation.backlog > 1 else ""
    return _Explanation(
        "behind",
        f"it has been due for {span(late)}, and the beat has not decided it{others}.",
        "The beat is busy, or hangs, or another session has locked the row: see its log, and "
        "`pgbeat doctor`.",
    )


def _last(last: Entry | None, now: datetime) -> str | Text:
    if last is None:
        return "none yet"
    asked = {"manual": ", by hand", "retry": ", a retry", "backfill": ", a backfill"}
    why = printing.why(last)
    return Text.assemble(
        printing.styled(last.outcome),
        f" {relative(last.decided_at, now)}{asked.get(last.trigger, '')}",
        f": {why}" if why else "",
    )


def _job(last: Entry | None, job: _UnfinishedJob | None) -> str | Text | None:
    if last is None or last.job_id is None:
        return None
    if len(last.jobs) > 1:
        return _jobs(last.jobs)
    state = printing.styled(last.job_state or "gone")
    why = f": {line(last.job_error)}" if last.job_error else ""
    again = ""
    if job is not None and job.job.retry_of is not None:
        again = f", tried again as {job.job.id}"
    return Text.assemble(f"{last.job_id} ", state, why, again)


def _jobs(launched: Sequence[JobOutcome]) -> Text:
    """Returns a summary of a tick's jobs, and a line for each."""
    lines = [
        Text.assemble(
            f"{job.id} {line(job.run_key)} ",
            printing.styled(job.state or "gone"),
            f": {line(job.error)}" if job.error else "",
        )
        for job in launched
    ]
    return Text("\n").join([Text(ticks.summary(launched)), *lines])


def _beat(holder: LockHolder) -> str:
    since = f" since {printing.utc(holder.since)} UTC" if holder.since else ""
    where = f" at {holder.client}" if holder.client else ""
    return f"{line(holder.application_name or f'session {holder.pid}')}{where}{since}"
