"""`pgbeat trigger` and `history`: decisions made now, and those made so far."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click
from rich.text import Text

from pgbeat.beat import control
from pgbeat.cli import printing
from pgbeat.cli.failures import FAILED, SKIPPED, BadInput
from pgbeat.cli.options import newest_option
from pgbeat.cli.printing import line, styled, utc
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option
from pgbeat.database import connections
from pgbeat.schedules import model as schedules
from pgbeat.schedules import ticks
from pgbeat.schedules.ticks import Entry, LaunchedJob

if TYPE_CHECKING:
    from celery import Celery

#: Celery's states as a job's.
_STATES = {
    "STARTED": "running",
    "RETRY": "scheduled",
    "SUCCESS": "completed",
    "FAILURE": "failed",
    "REVOKED": "cancelled",
}


@click.command("trigger")
@click.argument("name")
@json_option
@click.pass_context
@pass_target
def trigger_command(target: Target, ctx: click.Context, name: str, as_json: bool) -> None:
    """Decide a schedule now, whatever its timetable says; even a disabled or paused one.

    Its conditions are checked as ever. Exits with 0 if it launched, 3 if it was skipped, 1 if it
    failed. Needs the app.
    """
    target.require_app("a trigger needs the app, whose launchers and tasks it runs")
    with target.work() as unit:
        tick = control.trigger(unit, name, job_source="user_cli").tick
    if as_json:
        printing.echo_json(printing.tick_json(tick))
    else:
        why = printing.why(tick)
        if tick.job_id is not None:
            noun = "job" if tick.more_job_ids is None else f"{len(tick.job_ids)} jobs:"
            why = f"{noun} {', '.join(tick.job_ids)}"
        printing.show(Text.assemble(styled(tick.outcome), f": {why}"))
    ctx.exit({"launched": 0, "skipped": SKIPPED}.get(tick.outcome, FAILED))


@click.command("history")
@click.argument("name")
@newest_option
@click.option("--results", is_flag=True,
              help="Ask the app's result backend about jobs that seem pending.")  # fmt: skip
@json_option
@pass_target
def history_command(target: Target, name: str, limit: int, results: bool, as_json: bool) -> None:
    """Show a schedule's last ticks: outcome, reason or job, and how the job ended, or the last one
    that tried it again.

    Jobs stay pending here where no worker tracks (pgbeat_track is off); --results asks the result
    backend instead.
    """
    with target.transaction() as connection:
        now = connections.now(connection)
        row = schedules.get(connection, name, namespace=target.settings.namespace)
        entries = ticks.history(connection, row.id, limit=limit)
        stats = ticks.stats(connection, row.id)
    if results:
        app = target.require_app("the result backend is the app's")
        if app.backend.as_uri() == "disabled://":
            raise BadInput("the app has no result backend; set result_backend")
        entries = [_with_result(app, entry) for entry in entries]
    if as_json:
        figures = {
            "total": stats.total,
            "launched": stats.launched,
            "skipped": stats.skipped,
            "failed": stats.failed,
            "jobs_completed": stats.jobs_completed,
            "jobs_failed": stats.jobs_failed,
            "success_rate": stats.success_rate,
        }
        printing.echo_json({"schedule": row.name, "stats": figures, "ticks": entries})
        return
    if not entries:
        click.echo(f"Schedule {row.name!r} has no ticks yet; `pgbeat explain` says why.")
        return
    _show(entries, now)
    click.echo()
    click.echo(_summary(stats))
    old = [
        e for e in entries
        if e.job_state == "pending" and not _is_in_line(e) and now - e.decided_at > _SOON
    ]  # fmt: skip
    if old and not results:
        printing.note(
            f"{len(old)} of the jobs seem pending: no worker took them, or it doesn't track "
            "(pgbeat_track; --results asks the result backend)."
        )


#: After this long a pending job is worth a remark.
_SOON = timedelta(minutes=1)


def _show(entries: list[Entry], now: datetime) -> None:
    wide = printing.is_wide()
    middle = ["trigger", "why", "job", "how it ended"] if wide else ["why, or job"]
    folding = {"why", "how it ended", "why, or job"}
    table = printing.table("due (UTC)", "outcome", *middle, folding=folding)
    for entry in entries:
        why = printing.why(entry)
        job = str(entry.job_id or "")
        ended = Text.assemble(
            styled(entry.job_state or ("gone" if job else "")),
            _standing(entry, now),
            f": {line(entry.job_error)}" if entry.job_error else "",
        )
        if len(entry.jobs) > 1:
            job, ended = "\n".join(str(each.id) for each in entry.jobs), _of_each(entry)
        if wide:
            cells: list[str | Text] = [entry.trigger, why, job, ended]
        else:
            asked = "" if entry.trigger == "timetable" else f"({entry.trigger}) "
            told = f"; {why}" if why else ""
            cells = [Text.assemble(asked, f"{job} ", ended, told) if job else f"{asked}{why}"]
            if len(entry.jobs) > 1:
                cells = [Text.assemble(asked, ended, told)]
        table.add_row(utc(entry.due_at), styled(entry.outcome), *cells)
    printing.show(table)


def _of_each(entry: Entry) -> Text:
    """How each of several jobs of a tick is, by its run key."""
    lines = [
        Text.assemble(
            f"{line(job.run_key or str(job.id))} ", styled(job.state or "gone"),
            f": {line(job.error)}" if job.error else "",
        )
        for job in entry.jobs
    ]  # fmt: skip
    return Text("\n").join(lines)


def _standing(entry: Entry, now: datetime) -> str:
    """Which attempt at a job it is, where it is not the only one, and what it waits for."""
    said = []
    if entry.job_attempt is not None and entry.job_attempt > 1:
        said.append(f"attempt {entry.job_attempt} of {entry.job_max_attempts}")
    if entry.job_state == "scheduled" and entry.job_run_at is not None:
        said.append(printing.relative(entry.job_run_at, now))
    if _is_in_line(entry):
        said.append(f"in the line of lane {line(entry.job_lane)}")
    return f" ({', '.join(said)})" if said else ""


def _is_in_line(entry: Entry) -> bool:
    is_waiting = entry.job_state == "pending" and entry.job_dispatched_at is None
    return is_waiting and entry.job_lane is not None


def _summary(stats: ticks.Stats) -> str:
    counts = f"{stats.launched} launched, {stats.skipped} skipped, {stats.failed} failed"
    noun = "tick" if stats.total == 1 else "ticks"
    jobs = stats.jobs_completed + stats.jobs_failed
    ended = f"; of its jobs {stats.jobs_completed} completed, {stats.jobs_failed} failed"
    rate = stats.success_rate
    shown = "" if rate is None else f"; success rate {rate:.0%} (skips aside)"
    return f"{stats.total} {noun}: {counts}{ended if jobs else ''}{shown}"


def _with_result(app: "Celery", entry: Entry) -> Entry:
    """The tick with its jobs' states by the result backend, where the jobs themselves don't say."""
    launched = tuple(_asked(app, job) for job in entry.jobs)
    if launched == entry.jobs:
        return entry
    first = launched[0]
    return replace(entry, jobs=launched, job_state=first.state, job_error=first.error)


def _asked(app: "Celery", job: LaunchedJob) -> LaunchedJob:
    if job.state != "pending":
        return job
    try:
        meta = app.backend.get_task_meta(str(job.id))
    except Exception as error:  # any backend's
        raise click.ClickException(
            f"the result backend can't be asked: {type(error).__name__}: "
            f"{connections.first_line(error)}"
        ) from None
    state = _STATES.get(meta["status"], job.state)
    failed = state == "failed" and meta["result"] is not None
    reason = f"{type(meta['result']).__name__}: {meta['result']}" if failed else None
    return replace(job, state=state, error=reason)
