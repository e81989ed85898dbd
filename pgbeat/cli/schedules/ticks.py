"""`pgbeat trigger` and `history`: decide a schedule now, and look at its ticks."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click
from rich.text import Text

from pgbeat.beat.verbs import control
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.failures import FAILED, SKIPPED, BadInput
from pgbeat.cli.terminal.options import FLAG, newest_option, option
from pgbeat.cli.terminal.printing import Cell, line, styled, utc
from pgbeat.cli.terminal.target import Target, on_named, on_target
from pgbeat.database import connections
from pgbeat.schedules import model as schedules
from pgbeat.schedules import ticks
from pgbeat.schedules.ticks import Entry, JobOutcome
from pgbeat.views import schedules as views

if TYPE_CHECKING:
    from celery import Celery

#: The states of jobs for Celery's states.
_STATES = {
    "STARTED": "running",
    "RETRY": "scheduled",
    "SUCCESS": "completed",
    "FAILURE": "failed",
    "REVOKED": "cancelled",
}


@click.command("trigger")
@on_named
def trigger_command(target: Target, name: str) -> None:
    """Evaluate a schedule now, whatever its timetable says; even a disabled or paused one.

    Its conditions are checked as always. Exits with 0 if it launched, 3 if it was skipped, 1 if it
    failed. Needs the app.
    """
    target.require_app("a trigger needs the app, whose launchers and tasks it runs")
    with target.work() as unit:
        tick = control.trigger(unit, name, job_source="user_cli").tick
    if printing.is_json():
        printing.echo_json(views.made(tick))
    else:
        why = printing.why(tick)
        if tick.job_id is not None:
            noun = "job" if tick.more_job_ids is None else f"{len(tick.job_ids)} jobs:"
            why = f"{noun} {', '.join(tick.job_ids)}"
        printing.show(Text.assemble(styled(tick.outcome), f": {why}"))
    raise click.exceptions.Exit({"launched": 0, "skipped": SKIPPED}.get(tick.outcome, FAILED))


@click.command("history")
@click.argument("name")
@newest_option
@option("--results", FLAG, "Ask the result backend about pending jobs.")
@on_target
def history_command(target: Target, name: str, limit: int, results: bool) -> None:
    """Show a schedule's last ticks: outcome, reason or job, and how that or its last retry ended.

    Jobs stay pending if workers don't track them (pgbeat_track is off); --results asks the result
    backend instead.
    """
    with target.listing() as (connection, now):
        row = schedules.get(connection, name, namespace=target.namespace)
        entries = ticks.history(connection, row.id, limit=limit)
        stats = ticks.stats(connection, row.id)
    if results:
        app = target.require_app("the result backend is the app's")
        if app.backend.as_uri() == "disabled://":
            raise BadInput("the app has no result backend; set result_backend")
        entries = [_with_result(app, entry) for entry in entries]
    if printing.is_json():
        shown = [views.tick(entry) for entry in entries]
        view = {"schedule": row.name, "stats": views.outcomes(stats), "ticks": shown}
        printing.echo_json(view)
        return
    if not entries:
        click.echo(f"Schedule {row.name!r} has no ticks yet; `pgbeat explain` says why.")
        return
    cells_of = _wide_cells if printing.is_wide() else _narrow_cells
    cells = [cells_of(entry, now) for entry in entries]
    printing.show_table(cells, folding={"why", "how it ended", "why, or job"})
    click.echo()
    printing.show(Text(_summary(stats)))
    old = sum(
        entry.job_state == "pending" and not _is_in_line(entry) and now - entry.decided_at > _SOON
        for entry in entries
    )
    if old and not results:
        printing.note(
            f"{old} of the jobs seem pending: no worker took them, or it doesn't track "
            "(pgbeat_track; --results asks the result backend)."
        )


#: A job that is pending for longer is worth a remark.
_SOON = timedelta(minutes=1)


def _wide_cells(entry: Entry, now: datetime) -> dict[str, Cell]:
    ids = [job.id for job in entry.jobs] if len(entry.jobs) > 1 else [entry.job_id]
    jobs = Text("\n".join(str(printing.short_id(job_id) or "") for job_id in ids))
    return _outcome(entry) | {
        "trigger": entry.trigger,
        "why": printing.why(entry),
        "job": jobs,
        "how it ended": _ending(entry, now),
    }


def _narrow_cells(entry: Entry, now: datetime) -> dict[str, Cell]:
    why = printing.why(entry)
    asked = "" if entry.trigger == "timetable" else f"({entry.trigger}) "
    cell = Text(f"{asked}{why}")
    if entry.job_id is not None:
        job = f"{printing.short_id(entry.job_id)} " if len(entry.jobs) < 2 else ""
        cell = Text.assemble(asked, job, _ending(entry, now), f"; {why}" if why else "")
    return _outcome(entry) | {"why, or job": cell}


def _outcome(entry: Entry) -> dict[str, Cell]:
    return {"due (UTC)": utc(entry.due_at), "outcome": styled(entry.outcome)}


def _ending(entry: Entry, now: datetime) -> Text:
    """Returns how a tick's jobs ended, or what they wait for; several by their run keys."""
    if len(entry.jobs) < 2:
        return Text.assemble(
            styled(entry.job_state or ("gone" if entry.job_id else "")),
            _standing(entry, now),
            f": {line(entry.job_error)}" if entry.job_error else "",
        )
    lines = [
        Text.assemble(
            f"{line(job.run_key or str(job.id))} ",
            styled(job.state or "gone"),
            f": {line(job.error)}" if job.error else "",
        )
        for job in entry.jobs
    ]
    return Text("\n").join(lines)


def _standing(entry: Entry, now: datetime) -> str:
    """Returns the attempt, unless it is the first, and what the job waits for."""
    parts = []
    if entry.job_attempt is not None and entry.job_attempt > 1:
        parts.append(f"attempt {entry.job_attempt} of {entry.job_max_attempts}")
    if entry.job_state == "scheduled" and entry.job_run_at is not None:
        parts.append(printing.relative(entry.job_run_at, now))
    if entry.duration_ms is not None:
        parts.append(f"took {printing.lasting(timedelta(milliseconds=entry.duration_ms))}")
    if _is_in_line(entry):
        parts.append(f"in the line of lane {line(entry.job_lane)}")
    return f" ({', '.join(parts)})" if parts else ""


def _is_in_line(entry: Entry) -> bool:
    is_waiting = entry.job_state == "pending" and entry.job_dispatched_at is None
    return is_waiting and entry.job_lane is not None


def _summary(stats: ticks.Stats) -> str:
    counts = f"{stats.launched} launched, {stats.skipped} skipped, {stats.failed} failed"
    jobs = stats.jobs_completed + stats.jobs_failed
    ended = f"; of its jobs {stats.jobs_completed} completed, {stats.jobs_failed} failed"
    rate = stats.success_rate
    shown = "" if rate is None else f"; success rate {rate:.0%} (skips aside)"
    return f"{printing.counted(stats.total, 'tick')}: {counts}{ended if jobs else ''}{shown}"


def _with_result(app: "Celery", entry: Entry) -> Entry:
    """Returns the tick with the states of pending jobs as the result backend has them."""
    launched = tuple(_asked(app, job) for job in entry.jobs)
    if launched == entry.jobs:
        return entry
    first = launched[0]
    return replace(entry, jobs=launched, job_state=first.state, job_error=first.error)


def _asked(app: "Celery", job: JobOutcome) -> JobOutcome:
    if job.state != "pending":
        return job
    try:
        meta = app.backend.get_task_meta(str(job.id))
    except Exception as error:  # each backend has its own
        raise click.ClickException(
            f"the result backend can't be asked: {type(error).__name__}: "
            f"{connections.first_line(error)}"
        ) from None
    state = _STATES.get(meta["status"], job.state)
    failed = state == "failed" and meta["result"] is not None
    reason = f"{type(meta['result']).__name__}: {meta['result']}" if failed else None
    return replace(job, state=state, error=reason)
