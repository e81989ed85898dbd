"""How jobs look: in a list, one by one, and as figures."""

import json
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any
from uuid import UUID

import click
from rich.text import Text
from sqlalchemy import Connection

from pgbeat.access.redaction import Redactor
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.printing import Cell, compact, json_line, line, styled, when, when_and_who
from pgbeat.database import connections
from pgbeat.jobs.explaining import explain as whereabouts
from pgbeat.jobs.explaining import trace_rows
from pgbeat.jobs.explaining.explain import Whereabouts
from pgbeat.jobs.explaining.trace import Phase, Trace
from pgbeat.jobs.flow import dependencies
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running import executions, steps
from pgbeat.jobs.running.executions import Execution
from pgbeat.jobs.running.steps import ShownStep
from pgbeat.jobs.states import retries
from pgbeat.monitoring.statistics import ExecutionStatistics, Overview
from pgbeat.results.lookup import TaskResult
from pgbeat.views import View
from pgbeat.views import jobs as views

#: How a job has ended, in a sentence.
HAS = {
    "completed": "completed",
    "failed": "failed",
    "cancelled": "was cancelled",
    "skipped": "was skipped",
}


# -- a list


def show_list(rows: list[Job], now: datetime) -> None:
    """Prints jobs as a table."""
    is_wide = printing.is_wide(150) or printing.fits(
        [_cells(job, now, is_wide=True) for job in rows]
    )
    cells = [_cells(job, now, is_wide=is_wide) for job in rows]
    printing.show_table(cells, names={"task", "lane", "made by"}, folding={""})


def _cells(job: Job, now: datetime, *, is_wide: bool) -> dict[str, Cell]:
    more: dict[str, Cell] = {
        "lane": job.lane,
        "attempt": f"{job.attempt}/{job.max_attempts}" if job.max_attempts > 1 else "",
        "made by": job.created_by,
    }
    return {
        "job": printing.short_id(job.id),
        "state": styled(state(job)),
        "task": job.task if job.schedule is None else f"{job.task} ({job.schedule})",
        **(more if is_wide else {}),
        "age": printing.span(now - job.created_at, units=1),
        "": _remark(job, now),
    }


def state(job: Job) -> str:
    """Returns a job's state, and whether it awaits approval, was retried or is late."""
    if job.awaits_approval:
        return "paused (approval)"
    if job.state == "running" and job.cancel_requested_at is not None:
        return "running (cancelling)"
    if job.retried_by is not None:
        return f"{job.state} (retried)"
    return f"{job.state} (late)" if job.late_at is not None else job.state


def _remark(job: Job, now: datetime) -> str | None:
    if job.error is not None:
        return job.error
    if job.waits_for_event is not None:
        return f"waiting for {job.waits_for_event}"
    if job.run_at is not None and job.state == "scheduled":
        return printing.relative(job.run_at, now)
    return job.worker if job.state == "running" else None


def nothing(*, is_filtered: bool) -> str:
    """Returns a sentence to print instead of an empty list."""
    if is_filtered:
        return "There are no jobs like that."
    return "There are no jobs yet; `pgbeat jobs run TASK` makes one, `pgbeat add` a schedule."


# -- one


def whole(connection: Connection, job: Job, redactor: Redactor) -> View:
    """Returns all about a job, for JSON."""
    now = connections.now(connection)
    known = steps.of_job(connection, redactor, job)
    trace = trace_rows.of_job(connection, redactor, job, now, known)
    return views.detail(connection, job, redactor, limit=100) | {"trace": views.trace(trace, now)}


def show_one(connection: Connection, job: Job, redactor: Redactor) -> None:
    """Prints all about a job."""
    now = connections.now(connection)
    where = whereabouts.of_job(connection, job, now)
    artifacts = executions.artifacts(connection, [job.id]).get(job.id, [])
    artifacts = redactor.artifacts(job.task, artifacts)
    known = steps.of_job(connection, redactor, job)
    printing.show_facts(
        str(job.id),
        ("state", _state_in_full(job, where)),
        ("what to do", where.advice),
        ("task", job.task),
        ("args", _arguments(job.args)),
        ("kwargs", _arguments(job.kwargs)),
        ("options", compact(job.options)),
        ("schedule", job.schedule),
        ("due", when(job.due_at, now)),
        ("run key", job.run_key),
        ("template", job.template),
        ("queue", job.queue),
        ("lane", job.lane),
        ("priority", job.priority or None),
        ("description", job.description),
        ("labels", printing.labels(job.labels)),
        ("metadata", compact(job.metadata)),
        ("tags", ", ".join(job.tags)),
        ("resources", compact(job.resources)),
        ("group", _group(job)),
        ("callback of", str(job.callback_of) if job.callback_of else None),
        ("depends on", _parents(connection, job)),
        ("unique key", job.unique_key),
        ("attempt", _attempts(job)),
        ("artifacts", Text("\n".join(map(line, artifacts))) if artifacts else None),
        ("made", when_and_who(job.created_at, job.created_by, now)),
        ("not before", when(job.run_at, now)),
        ("must start", when(job.must_start_by, now)),
        ("must end", when(job.must_end_by, now)),
        ("late", _lateness(job, now)),
        ("paused", when(job.paused_at, now)),
        ("approved", when_and_who(job.approved_at, job.approved_by, now)),
        ("began", when(job.started_at, now)),
        ("cancel", when_and_who(job.cancel_requested_at, job.cancel_requested_by, now)),
        ("because", job.cancel_reason),
        ("ended", when(job.finished_at, now)),
        ("trace", _trace(trace_rows.of_job(connection, redactor, job, now, known), now)),
        ("error", None if job.error is None else Text(line(job.error), style="red")),
        ("checkpoint", compact(job.checkpoint)),
    )
    _show_steps(known, now)
    _show_chain(redactor.rows(retries.chain(connection, job.id)), job.id, now)
    runs = executions.of_job(connection, job.id)
    _show_runs([redactor.row(run, job.task) for run in runs], now)


def _state_in_full(job: Job, where: Whereabouts) -> Text:
    has_place = job.has_ended or job.state == where.sentence
    return Text.assemble(styled(state(job)), "" if has_place else f": {line(where.sentence)}")


def _attempts(job: Job) -> str:
    if job.max_attempts == 1:
        return f"{job.attempt} of 1"
    base, cap = printing.span(job.retry_base), printing.span(job.retry_cap)
    return f"{job.attempt} of {job.max_attempts}, {base} × 2^(n-1) apart, {cap} at most"


def _lateness(job: Job, now: datetime) -> Text | None:
    """Returns when a job was marked as late, and why."""
    if job.late_at is None:
        return None
    missed = " and ".join(
        {"start": "not started", "end": "not ended"}[d] for d in job.missed_deadlines
    )
    return Text(f"{when(job.late_at, now)}: {missed} in time", style="yellow")


def _trace(trace: Trace, now: datetime) -> Text | None:
    """Returns a line for each attempt, such as `in queue 2 s, running on w1 5 s (failed)`."""
    phases = [phase for phase in trace.phases if not phase.is_moment]
    attempts = [list(those) for _, those in groupby(phases, lambda phase: phase.job_id)]
    lines = [
        (f"{those[0].attempt}: " if len(attempts) > 1 else "")
        + ", ".join(_phase(phase, now) for phase in those)
        for those in attempts
    ]
    return Text("\n".join(map(line, lines))) if lines else None


def _phase(phase: Phase, now: datetime) -> str:
    took = printing.lasting(phase.lasts(now))
    so_far = " so far" if phase.end is None else ""
    shown = f"{phase.words} {took}{so_far}"
    about = "; ".join(filter(None, ((phase.state or "").replace("_", " "), phase.note)))
    value = f" → {phase.brief_value}" if phase.brief_value else ""
    return shown + (f" ({about})" if about else "") + value


def _arguments(value: Any) -> str:
    return "not JSON" if value is None else compact(value)


def _group(job: Job) -> str | None:
    if job.group_id is None:
        return None
    place = "" if job.group_position is None else f", place {job.group_position}"
    return f"{job.group_id}{place}"


def _parents(connection: Connection, job: Job) -> Text | None:
    """Returns a line for each job on which this one depends, up to 20."""
    parents = dependencies.of_jobs(connection, [job.id], limit=21).get(job.id, [])
    lines = [f"{parent.id} {parent.outcome or 'has not ended'}" for parent in parents[:20]]
    return Text("\n".join(lines + ["…"] * (len(parents) > 20))) if lines else None


def _show_steps(known: list[ShownStep], now: datetime) -> None:
    if not known:
        return
    click.echo()
    rows: list[dict[str, Cell]] = [
        {
            "step": step.name,
            "kind": step.kind,
            "state": styled(step.state),
            "began": printing.relative(step.began_at, now),
            "took": printing.lasting(step.lasts(now)),
            "until (UTC)": printing.utc(step.until),
            "value": printing.cut(json_line(step.value)) if step.has_value else "",
        }
        for step in known
    ]
    printing.show_table(rows, names={"step"}, folding={"value"})


def _show_chain(chain: list[Job], job_id: UUID, now: datetime) -> None:
    """Prints all jobs that tried the same, if there is more than this one."""
    if len(chain) < 2:
        return
    click.echo()
    rows: list[dict[str, Cell]] = [
        {
            " ": "→" if other.id == job_id else "",
            "attempts": f"{other.id} {other.attempt}/{other.max_attempts}",
            "state": styled(state(other)),
            "made": printing.relative(other.created_at, now),
            "": _remark(other, now),
        }
        for other in chain
    ]
    printing.show_table(rows, folding={""})


def _show_runs(runs: list[Execution], now: datetime) -> None:
    if not runs:
        return
    click.echo()
    rows: list[dict[str, Cell]] = [
        {
            "execution": str(run.number),
            "state": styled("lost" if run.lost else run.state),
            "began": printing.relative(run.started_at, now),
            "took": _milliseconds(run.duration_ms),
            "CPU": _milliseconds(run.cpu_time_ms),
            "memory": None if run.memory_peak_mb is None else f"{run.memory_peak_mb:.0f} MB",
            "worker": run.worker,
            "": _said(run),
        }
        for run in runs
    ]
    printing.show_table(rows, folding={""})
    _show_traceback(runs[0].traceback)


def show_result(result: TaskResult) -> None:
    """Prints a task's whole result as JSON."""
    click.secho("Result", bold=True)
    if not result.is_readable:
        click.echo(f"  {result.size} bytes of {line(result.content_type)}")
        return
    _show_code(json.dumps(result.value, indent=2, ensure_ascii=False))


def show_task(result: TaskResult, now: datetime) -> None:
    """Prints the result of a task that is not a job."""
    if printing.is_json():
        printing.echo_json({"result": result})
        return
    printing.show_facts(
        result.task_id,
        ("state", result.status),
        ("task", result.task),
        ("worker", result.worker),
        ("queue", result.queue),
        ("ended", when(result.finished_at, now)),
        ("expires", when(result.expires_at, now)),
    )
    click.echo()
    show_result(result)
    _show_traceback(result.traceback)


def _show_traceback(text: str | None) -> None:
    if text:
        click.echo()
        _show_code(text)


def _show_code(text: str) -> None:
    for row in text.splitlines():
        click.echo(f"  {printing.code(row)}")


def _milliseconds(value: float | None) -> str:
    return "" if value is None else printing.lasting(timedelta(milliseconds=value))


def _said(run: Execution) -> str:
    """Returns an execution's reports: progress, error, result and metadata."""
    parts = [progress(run) if run.state == "running" else "", run.error, run.result]
    return "; ".join(filter(None, [*parts, compact(run.metadata)]))


def progress(run: Execution) -> str:
    """Returns an execution's progress, as its task reported it."""
    if run.progress_done is None:
        return run.progress_message or ""
    done = f"{run.progress_done:g}"
    if run.progress_total:
        done += f" of {run.progress_total:g} ({run.progress_done / run.progress_total:.0%})"
    return f"{done} {run.progress_message or ''}".rstrip()


# -- sentences


def made(job: Job, *, is_new: bool, follows: bool) -> str:
    """Returns a sentence on a job that was submitted, or on the one that has its unique key."""
    if not is_new:
        return f"Job {job.id} has the same unique key and is {job.state}; no job is made."
    hint = "" if follows else f"; `pgbeat jobs tail {str(job.id)[:8]}` follows it"
    return f"Made job {job.id} of task {job.task!r}: {now_is(job)}{hint}"


def now_is(job: Job) -> str:
    """Returns where a job is, in a few words."""
    if job.has_ended:
        return f"it {HAS[job.state]}" + (f": {line(job.error)}" if job.error else "")
    if job.awaits_approval:
        return "it waits for approval"
    if job.state == "scheduled" and job.run_at is not None:
        return f"it comes at {printing.utc(job.run_at)} UTC"
    if job.dispatched_at is None and job.lane is not None and not job.is_blocked:
        return f"it waits in lane {job.lane!r}"
    queue = "" if job.queue is None or job.state != "pending" else f" in queue {job.queue!r}"
    return f"it is {job.state}{queue}"


# -- figures


def show_overview(overview: Overview) -> None:
    """Prints how many jobs are in which state, and the counters."""
    if any(overview.jobs.values()):
        states = [(word, number or None) for word, number in overview.jobs.items()]
        printing.show_facts("jobs", *states)
    if overview.counters:
        counters = [(name.replace("_", " "), n) for name, n in overview.counters.items()]
        printing.show_facts("counted", *counters)
    click.secho("executions", bold=True)


def show_figures(figures: ExecutionStatistics, now: datetime) -> None:
    """Prints statistics of executions."""
    rate = figures.success_rate
    parts = [
        f"{number} {word}"
        for word in ("completed", "failed", "cancelled", "skipped", "running", "lost")
        if (number := getattr(figures, word))
    ]
    last = None
    if figures.last_at is not None:
        last = f"{figures.last_state}, {printing.relative(figures.last_at, now)}"
    printing.show_facts(
        None,
        ("total", f"{figures.total}{'' if figures.is_whole else ' (the newest)'}"),
        ("of which", ", ".join(parts)),
        ("success rate", None if rate is None else f"{rate:.0%} (skips aside)"),
        ("average", _milliseconds(figures.average_ms)),
        ("95 %", "" if figures.p95_ms is None else f"in {_milliseconds(figures.p95_ms)}"),
        ("last", last),
        ("next", when(figures.next_at, now)),
    )
