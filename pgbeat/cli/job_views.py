"""How jobs look: in a list, and one with all about it; figures."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import click
from rich.text import Text
from sqlalchemy import Connection

from pgbeat.access.actors import Actor
from pgbeat.cli import printing
from pgbeat.cli.printing import compact, line, styled, when
from pgbeat.database import connections
from pgbeat.jobs import executions, retries
from pgbeat.jobs import explain as whereabouts
from pgbeat.jobs.executions import Execution
from pgbeat.jobs.model import Job
from pgbeat.monitoring.statistics import ExecutionStatistics, Overview

#: Jobs of others are counted up to here.
MANY = 1000
#: What became of a job, in a sentence.
HAS = {
    "completed": "completed", "failed": "failed", "cancelled": "was cancelled",
    "skipped": "was skipped",
}  # fmt: skip


# -- a list


def as_json(job: Job) -> dict[str, Any]:
    """A job's columns."""
    row = job._asdict()
    return row | {"position": None if job.position is None else float(job.position)}


def show_list(rows: list[Job], now: datetime) -> None:
    """A line for each."""
    wide = printing.is_wide()
    middle = ["lane", "attempt", "made by"] if wide else []
    table = printing.table(
        "job", "state", "task", *middle, "age", "", folding={"task", ""}, numbers={"attempt"}
    )
    for job in rows:
        cells = [line(job.lane or ""), _attempt(job), line(job.created_by)] if wide else []
        age = printing.span(now - job.created_at, units=1)
        what = line(job.task if job.schedule is None else f"{job.task} ({job.schedule})")
        table.add_row(str(job.id), styled(state(job)), what, *cells, age, _remark(job, now))
    printing.show(table)


def state(job: Job) -> str:
    """A job's state, and what else there is to it."""
    if job.awaits_approval:
        return "paused (approval)"
    if job.state == "running" and job.cancel_requested_at is not None:
        return "running (cancelling)"
    return job.state


def _attempt(job: Job) -> str:
    return f"{job.attempt}/{job.max_attempts}" if job.max_attempts > 1 else ""


def _remark(job: Job, now: datetime) -> str:
    if job.error is not None:
        return line(job.error)
    if job.run_at is not None and job.state == "scheduled":
        return printing.relative(job.run_at, now)
    return line(job.worker) if job.state == "running" and job.worker else ""


def hidden(noun: str, others: int) -> str:
    """Returns what a list says of those that it leaves out because others made them."""
    if others == 1:
        return f"Note: 1 {noun} of others isn't shown; --admin shows all."
    number = f"{MANY} or more" if others >= MANY else str(others)
    return f"Note: {number} {noun}s of others aren't shown; --admin shows all."


def nothing(*, is_filtered: bool, others: int, actor: Actor) -> str:
    """What to say instead of an empty list."""
    kind = " like that" if is_filtered else ""
    if others:
        number = f"{MANY} or more" if others >= MANY else str(others)
        none = f"There are no jobs{kind} of yours ({actor.name})"
        return f"{none}; --admin shows those of everybody, {number} of them."
    if actor.is_admin or is_filtered:
        whose = "" if actor.is_admin else f" of yours ({actor.name})"
        return f"There are no jobs{kind}{whose}."
    return "There are no jobs yet; `pgbeat jobs run TASK` makes one, `pgbeat add` a schedule."


# -- one


def whole(connection: Connection, job: Job) -> dict[str, Any]:
    """All about a job, for JSON."""
    found = whereabouts.of_job(connection, job, connections.now(connection))
    return as_json(job) | {
        "where": {"cause": found.cause, "sentence": found.sentence, "advice": found.advice},
        "artifacts": executions.artifacts(connection, [job.id]).get(job.id, []),
        "executions": [
            run._asdict() | {"artifacts": run.artifacts}
            for run in executions.of_job(connection, job.id)
        ],
        "chain": [
            {"id": other.id, "attempt": other.attempt, "state": other.state, "error": other.error}
            for other in retries.chain(connection, job.id)
        ],
    }


def show_one(connection: Connection, job: Job) -> None:
    """All about a job."""
    now = connections.now(connection)
    where = whereabouts.of_job(connection, job, now)
    runs = executions.of_job(connection, job.id)
    made = executions.artifacts(connection, [job.id]).get(job.id, [])
    click.secho(f"{job.id}", bold=True)
    tried = f"{job.attempt} of {job.max_attempts}"
    if job.max_attempts > 1:
        tried += f", {printing.span(job.retry_base)} × 2^(n-1) apart, "
        tried += f"{printing.span(job.retry_cap)} at most"
    printing.show(
        printing.facts(
            [
                ("state", Text.assemble(styled(state(job)), _where(job, where.sentence))),
                ("what to do", where.advice or None),
                ("task", line(job.task)),
                ("args", _arguments(job.args)),
                ("kwargs", _arguments(job.kwargs)),
                ("options", line(compact(job.options))),
                ("schedule", None if job.schedule is None else line(job.schedule)),
                ("due", when(job.due_at, now)),
                ("run key", None if job.run_key is None else line(job.run_key)),
                ("template", None if job.template is None else line(job.template)),
                ("queue", None if job.queue is None else line(job.queue)),
                ("lane", None if job.lane is None else line(job.lane)),
                ("priority", str(job.priority) if job.priority else None),
                ("description", job.description and line(job.description)),
                ("labels", printing.labels(job.labels)),
                ("metadata", line(compact(job.metadata))),
                ("tags", ", ".join(map(line, job.tags))),
                ("resources", line(compact(job.resources))),
                ("group", _group(job)),
                ("unique key", None if job.unique_key is None else line(job.unique_key)),
                ("attempt", tried),
                ("artifacts", "\n".join(map(line, made)) or None),
                ("made", f"{when(job.created_at, now)}, by {line(job.created_by)}"),
                ("not before", when(job.run_at, now)),
                ("approved", _by(job.approved_at, job.approved_by, now)),
                ("began", when(job.started_at, now)),
                ("cancel", _by(job.cancel_requested_at, job.cancel_requested_by, now)),
                ("because", None if job.cancel_reason is None else line(job.cancel_reason)),
                ("ended", when(job.finished_at, now)),
                ("error", None if job.error is None else Text(line(job.error), style="red")),
                ("checkpoint", line(compact(job.checkpoint))),
            ]
        )
    )
    _show_chain(retries.chain(connection, job.id), job.id, now)
    _show_runs(runs, now)


def _where(job: Job, sentence: str) -> str:
    return "" if job.has_ended or job.state == sentence else f": {line(sentence)}"


def _arguments(value: Any) -> str:
    return "not JSON" if value is None else line(compact(value))


def _group(job: Job) -> str | None:
    if job.group_id is None:
        return None
    place = "" if job.group_position is None else f", place {job.group_position}"
    return f"{job.group_id}{place}"


def _by(moment: datetime | None, who: str | None, now: datetime) -> str | None:
    return None if moment is None else f"{when(moment, now)}, by {line(who)}"


def _show_chain(chain: list[Job], job_id: UUID, now: datetime) -> None:
    if len(chain) < 2:
        return
    click.echo()
    table = printing.table("", "attempts", "state", "made", "", folding={""})
    for other in chain:
        mark = "→" if other.id == job_id else ""
        made = printing.relative(other.created_at, now)
        shown, attempt = styled(state(other)), f"{other.attempt}/{other.max_attempts}"
        table.add_row(mark, f"{other.id} {attempt}", shown, made, _remark(other, now))
    printing.show(table)


def _show_runs(runs: list[Execution], now: datetime) -> None:
    if not runs:
        return
    click.echo()
    table = printing.table(
        "execution", "state", "began", "took", "CPU", "memory", "worker", "", folding={""}
    )
    for run in runs:
        came_out = "lost" if run.lost else run.state
        table.add_row(
            str(run.number),
            styled(came_out),
            printing.relative(run.started_at, now),
            _milliseconds(run.duration_ms),
            _milliseconds(run.cpu_time_ms),
            "" if run.memory_peak_mb is None else f"{run.memory_peak_mb:.0f} MB",
            line(run.worker),
            _said(run),
        )
    printing.show(table)
    if runs[0].traceback:
        click.echo()
        for row in runs[0].traceback.splitlines():
            click.echo(f"  {_code(row)}")


def _code(row: str) -> str:
    """A line of a traceback, its blanks kept, with nothing in it that would move the cursor."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in row)


def _milliseconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f} ms" if value < 1000 else printing.span(timedelta(milliseconds=value))


def _said(run: Execution) -> str:
    parts = [progress(run) if run.state == "running" else "", run.error or "", run.result or ""]
    return "; ".join(line(part) for part in [*parts, compact(run.metadata)] if part)


def progress(run: Execution) -> str:
    """How far an execution is, as its task told."""
    if run.progress_done is None:
        return run.progress_message or ""
    done = f"{run.progress_done:g}"
    if run.progress_total:
        done += f" of {run.progress_total:g} ({run.progress_done / run.progress_total:.0%})"
    return f"{done} {run.progress_message or ''}".rstrip()


# -- sentences


def made(job: Job, *, is_new: bool, follows: bool) -> str:
    """What to say of a job that was asked for."""
    if not is_new:
        return f"Job {job.id}, which has the same unique key, is {job.state}; none is made."
    hint = "" if follows else f"; `pgbeat jobs tail {str(job.id)[:8]}` follows it"
    return f"Made job {job.id} of task {job.task!r}: {now_is(job)}{hint}"


def now_is(job: Job) -> str:
    """Where a job is, in a few words."""
    if job.has_ended:
        return f"it {HAS[job.state]}" + (f": {line(job.error)}" if job.error else "")
    if job.awaits_approval:
        return "it waits for approval"
    if job.state == "scheduled" and job.run_at is not None:
        return f"it comes at {printing.utc(job.run_at)} UTC"
    if job.dispatched_at is None and job.lane is not None and not job.blocked_by_group:
        return f"it waits in lane {job.lane!r}"
    queue = "" if job.queue is None or job.state != "pending" else f" in queue {job.queue!r}"
    return f"it is {job.state}{queue}"


# -- figures


def figures_json(figures: ExecutionStatistics) -> dict[str, Any]:
    """Figures with their rate."""
    return figures._asdict() | {"success_rate": figures.success_rate}


def show_overview(overview: Overview) -> None:
    """How many jobs there are in which state, and what else is counted."""
    states = [(word, str(number)) for word, number in overview.jobs.items() if number]
    if states:
        click.secho("jobs", bold=True)
        printing.show(printing.facts(states))
    if overview.counters:
        click.secho("counted", bold=True)
        counters = [(name.replace("_", " "), str(n)) for name, n in overview.counters.items()]
        printing.show(printing.facts(counters))
    click.secho("executions", bold=True)


def show_figures(figures: ExecutionStatistics, now: datetime) -> None:
    """How executions came out."""
    rate = figures.success_rate
    parts = [
        f"{number} {word}"
        for word in ("completed", "failed", "cancelled", "skipped", "running", "lost")
        if (number := getattr(figures, word))
    ]
    last = None
    if figures.last_at is not None:
        last = f"{figures.last_state}, {printing.relative(figures.last_at, now)}"
    printing.show(
        printing.facts(
            [
                ("total", str(figures.total) + ("" if figures.is_whole else " (the newest)")),
                ("of which", ", ".join(parts)),
                ("success rate", None if rate is None else f"{rate:.0%} (skips aside)"),
                ("average", _milliseconds(figures.average_ms)),
                ("95 %", "" if figures.p95_ms is None else f"in {_milliseconds(figures.p95_ms)}"),
                ("last", last),
                ("next", when(figures.next_at, now)),
            ]
        )
    )
