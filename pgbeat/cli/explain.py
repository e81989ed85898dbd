"""`pgbeat explain`: why a schedule did or didn't run."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import click
from rich.text import Text
from sqlalchemy import Connection

from pgbeat.cli import printing
from pgbeat.cli.printing import line, relative, span, when
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option, window
from pgbeat.database import advisory_locks, connections
from pgbeat.database.advisory_locks import LockHolder
from pgbeat.errors import NotFound
from pgbeat.jobs import explain as whereabouts
from pgbeat.jobs import retries
from pgbeat.jobs.explain import Whereabouts
from pgbeat.jobs.model import Job
from pgbeat.monitoring import beats, schedule_health
from pgbeat.monitoring.schedule_health import Health
from pgbeat.schedules import model as schedules
from pgbeat.schedules import ticks
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.ticks import Entry, LaunchedJob

#: A beat that is alive decides sooner than this, conditions aside.
_PROMPT = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Answer:
    """Why a schedule is where it is: a word for programs, a sentence, and what to do."""

    cause: str
    summary: str
    advice: str = ""

    def with_job(self, job: "UnfinishedJob") -> "Answer":
        """The answer where a job of the schedule has not ended, which that is about, or is worth a
        sentence."""
        if self.cause == "overlap":
            said = f"{self.summary} That one {line(job.where.sentence)}."
            return Answer(self.cause, said, job.where.advice or self.advice)
        if job.where.cause in _ON_ITS_WAY:
            return self
        said = f"{self.summary} The job that it launched {line(job.where.sentence)}."
        return Answer(self.cause, said, " ".join(filter(None, (self.advice, job.where.advice))))

    def with_health(self, health: Health) -> "Answer":
        """The answer with what became of the jobs, where that is not as it should be: on time is
        not enough."""
        if health.code not in ("failing", "waiting", "never_launched"):
            return self
        if health.error is not None and line(health.error) in self.summary:
            return self._advised(health)  # paused for it
        advice = ""
        if health.code == "waiting":
            advice = "Is there a worker for its queue? `pgbeat queues list` shows them."
        elif health.code == "never_launched":
            advice = "`pgbeat history` has the reasons."
        summary = f"{self.summary} Its jobs: {line(health.summary)}."
        if health.code == "never_launched":
            summary = f"{self.summary} But {line(health.summary)}."
        said = Answer(self.cause, summary, " ".join(filter(None, (self.advice, advice))))
        return said._advised(health)

    def _advised(self, health: Health) -> "Answer":
        if health.job_id is None:
            return self
        advice = f"`pgbeat jobs show {health.job_id}` shows the last one."
        return Answer(self.cause, self.summary, " ".join(filter(None, (self.advice, advice))))


#: Where a job is as it should be.
_ON_ITS_WAY = ("running", "queue", "outbox", "ended")


@dataclass(frozen=True, slots=True)
class UnfinishedJob:
    """The job of the last tick, or that which is waited for, and why it isn't done."""

    job: Job
    where: Whereabouts

    def as_json(self) -> dict[str, object]:
        """For programs."""
        job = self.job
        return {
            "id": job.id, "state": job.state, "attempt": job.attempt, "lane": job.lane,
            "run_at": job.run_at, **self.where._asdict(),
        }  # fmt: skip


@click.command("explain")
@click.argument("name")
@json_option
@pass_target
def explain_command(target: Target, name: str, as_json: bool) -> None:
    """Say why a schedule did or didn't run, and what to do about it."""
    settings = target.settings
    with target.transaction() as connection:
        now = connections.now(connection)
        row = schedules.get(connection, name, namespace=settings.namespace)
        history = ticks.history(connection, row.id, limit=1)
        holders = advisory_locks.holders(connection, settings.leader_key)
        backlog = schedules.count(connection, namespace=settings.namespace)["due"]
        before = _before(connection, row, now)
        last = history[0] if history else None
        job = _unfinished(connection, row, last, now)
        health = schedule_health.of_schedule(
            connection, row, timedelta(seconds=beats.patience(settings))
        )
    leader = next((holder for holder in holders if holder.leads), None)
    patience = timedelta(seconds=settings.condition_timeout)
    answer = explain(row, holders, backlog, now, settings.leader_key, patience, before)
    if job is not None:
        answer = answer.with_job(job)
    answer = answer.with_health(health)
    if as_json:
        printing.echo_json(
            {
                "schedule": row.name,
                "cause": answer.cause,
                "summary": answer.summary,
                "advice": answer.advice or None,
                "health": health._asdict() | {"severity": health.severity},
                "next_run": row.next_run,
                "last_tick": last,
                "job": job and job.as_json(),
                "leader": leader,
            }
        )
        return
    click.echo(f"{line(row.name)}: {answer.summary}")
    if answer.advice:
        click.echo(answer.advice)
    click.echo()
    waits = row.enabled and row.paused_at is None
    printing.show(
        printing.facts(
            [
                ("health", printing.health(health, in_full=True)),
                ("last tick", _last(last, now)),
                ("its job", _job(last, job)),
                ("next run", when(row.next_run, now) if waits else None),
                ("timetable", printing.timetable(row, target.timezone)),
                ("window", window(row, now)),
                ("calendar", row.calendar and line(row.calendar)),
                ("condition", _condition(row)),
                ("beat", "none" if leader is None else _beat(leader)),
            ]
        )
    )


def explain(
    row: Schedule,
    holders: Sequence[LockHolder],
    backlog: int,
    now: datetime,
    lock_key: int,
    patience: timedelta,
    before: str,
) -> Answer:
    """The first reason that applies: the row's own, then the beat's, then the time. `before` says
    how the schedule stands that it comes after."""
    name = row.name
    if not row.enabled:
        return _disabled(row, now)
    if row.paused_at is not None:
        return Answer(
            "paused",
            f"it is paused, since {when(row.paused_at, now)}{_why_paused(row)}.",
            f"`pgbeat resume {name}` lets it go on.",
        )
    is_due = row.next_run is not None and row.next_run <= now
    if not any(holder.leads for holder in holders):
        due = (
            f"it has been due for {span(now - row.next_run)}, but"
            if is_due and row.next_run
            else ""
        )
        return Answer(
            "no_beat",
            f"{due or 'it waits:'} no beat runs (nobody holds lock {lock_key}).",
            "Start one: celery -A APP beat -S pgbeat.Scheduler",
        )
    if row.waiting_for is not None:
        return Answer(
            "overlap",
            f"it has been due for {span(now - (row.due_at or now))}, and waits for the job before "
            f"it, {row.waiting_for}, to end (overlap {row.overlap}).",
            _WORKERS,
        )
    if row.next_run is None:
        return _new(row, now) if row.after is None else Answer("after", before, _WORKERS)
    if not is_due:
        soon = relative(row.next_run, now)
        if row.retry_count:
            return Answer(
                "retry",
                f"it failed {row.retry_count} of {row.max_retries} times in a row and is tried "
                f"again {soon}: {line(row.last_error)}",
                f"`pgbeat trigger {name}` tries it now.",
            )
        if row.due_at is not None and row.due_at <= now:
            return Answer(
                "jitter",
                f"its time was {span(now - row.due_at)} ago, and its jitter (up to "
                f"{span(row.jitter)}) puts it off; it comes {soon}.",
            )
        return Answer("not_due", f"it is not due yet; next {soon}.")
    return _late(row, backlog, now, patience)


def _why_paused(row: Schedule) -> str:
    return "" if row.paused_reason is None else f": {line(row.paused_reason)}"


#: What is easily forgotten where the end of a job counts.
_WORKERS = "The end of a job is known if its worker tracks (pgbeat_track)."


def _unfinished(
    connection: Connection, row: Schedule, last: Entry | None, now: datetime
) -> UnfinishedJob | None:
    """The job that the schedule waits for, else that of its last tick, unless that has ended."""
    job_id = row.waiting_for
    if job_id is None and last is not None:
        job_id = next((each.id for each in last.jobs if not each.has_ended), last.job_id)
    job = None if job_id is None else retries.last_attempt(connection, job_id)
    if job is None or job.has_ended:
        return None
    return UnfinishedJob(job, whereabouts.of_job(connection, job, now))


def _disabled(row: Schedule, now: datetime) -> Answer:
    reason, name = line(row.disabled_reason or "no reason given"), row.name
    if row.completed is not None:
        again = f"`pgbeat enable {name}` lets it begin again."
        if row.max_runs is None or row.run_count < row.max_runs:
            again = (
                f"`pgbeat update {name}` gives it another time, `pgbeat enable {name}` puts it "
                "back in service then."
            )
        return Answer("completed", f"it is done: {line(row.completed)}.", again)
    advice = f"`pgbeat enable {name}` puts it back in service."
    if row.probe_at is not None:
        advice = f"It is tried again {relative(row.probe_at, now)}. {advice}"
    return Answer("disabled", f"it is disabled: {reason}.", advice)


def _before(connection: Connection, row: Schedule, now: datetime) -> str:
    """How the schedule stands that it comes after, in a sentence."""
    if row.after is None:
        return ""
    waits = f"it comes {printing.timetable(row)}"
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


def _new(row: Schedule, now: datetime) -> Answer:
    if now - row.updated_at <= _PROMPT:
        return Answer("new", "it has just been changed, and the beat is about to compute when.")
    return Answer(
        "behind",
        f"the beat has not computed its next time, {span(now - row.updated_at)} after the change.",
        "It is busy, or hangs: see its log, and `pgbeat doctor`.",
    )


def _late(row: Schedule, backlog: int, now: datetime, patience: timedelta) -> Answer:
    late = now - (row.next_run or now)
    if late <= _PROMPT:
        return Answer("due", "it is due this moment.")
    conditional = row.launcher != "GenericLauncher" or row.condition_sql is not None
    if conditional and late <= patience + _PROMPT:
        return Answer(
            "condition",
            f"it has been due for {span(late)}; its condition is being checked, for "
            f"{span(patience)} at most.",
        )
    others = f"; {backlog} schedules are due" if backlog > 1 else ""
    return Answer(
        "behind",
        f"it has been due for {span(late)}, and the beat has not decided it{others}.",
        "The beat is busy, or hangs, or somebody holds the row locked: see its log, and "
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


def _job(last: Entry | None, job: UnfinishedJob | None) -> str | Text | None:
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


def _jobs(launched: Sequence[LaunchedJob]) -> Text:
    """How several jobs of a tick are, each on a line of its own after a summary."""
    lines = [
        Text.assemble(
            f"{job.id} {line(job.run_key)} ", printing.styled(job.state or "gone"),
            f": {line(job.error)}" if job.error else "",
        )
        for job in launched
    ]  # fmt: skip
    return Text("\n").join([Text(ticks.summary(launched)), *lines])


def _condition(row: Schedule) -> str | None:
    if row.launcher != "GenericLauncher":
        return row.launcher
    return None if row.condition_sql is None else line(row.condition_sql)


def _beat(holder: LockHolder) -> str:
    since = f" since {printing.utc(holder.since)} UTC" if holder.since else ""
    where = f" at {holder.client}" if holder.client else ""
    return f"{line(holder.application_name or f'session {holder.pid}')}{where}{since}"
