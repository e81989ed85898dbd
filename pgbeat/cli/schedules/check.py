"""`pgbeat check`: what would happen to a schedule now."""

import json
from collections.abc import Sequence
from typing import Any

import click
from rich.text import Text

from pgbeat.beat.evaluation import Evaluation, Failure
from pgbeat.beat.verbs.dry_run import DryRun, dry_run
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.failures import FAILED, SKIPPED
from pgbeat.cli.terminal.printing import line
from pgbeat.cli.terminal.target import Target, on_named
from pgbeat.jobs.preparing.prepare import PreparedJob
from pgbeat.jobs.running.task_exceptions import Skip
from pgbeat.schedules import model as schedules
from pgbeat.schedules.launchers import JobRequest
from pgbeat.schedules.model import Schedule

_VERBS = {
    "launched": "would be launched",
    "skipped": "would be skipped",
    "failed": "would fail",
    "waiting": "would wait",
}


@click.command("check")
@on_named
def check_command(target: Target, name: str) -> None:
    """Say what would happen to a schedule now; launch nothing.

    Evaluates its policies, and its launcher or condition, as if it were due. Exits as `trigger`
    would: 0 launched, 3 skipped, 1 failed. A launcher in Python needs the app.

    Its JSON has `schedule`, `outcome`, `reason`, `error`, `objections` (`policy`, `reason`),
    `launcher` (`name`, `outcome`, `why`), `request` and `requests` (`run_key`, `task`, `args`,
    `kwargs`, `options`, `queue`) and `job` (`lane`, `priority`, `max_attempts`, `unique_key`,
    `awaits_approval`, `waits_for`).
    """
    with target.transaction() as connection:
        row = schedules.get(connection, name, namespace=target.namespace)
    app = target.registry
    if app is None and row.launcher != "GenericLauncher":
        app = target.require_app(
            f"launcher {row.launcher} of schedule {name!r} is in the app's code"
        )
    if app is None and row.args is None:
        app = target.require_app(f"schedule {name!r} has its arguments in the app's code")
    with target.session() as connection:
        result = dry_run(connection, app, target.settings, name)
    if printing.is_json():
        printing.echo_json(_json(result))
    else:
        _show(result)
    _remark(target, result)
    raise click.exceptions.Exit({"launched": 0, "failed": FAILED}.get(result.outcome, SKIPPED))


def _json(result: DryRun) -> dict[str, Any]:
    outcome, why = _launcher_outcome(result.evaluation)
    requests = _requests(result)
    return {
        "schedule": result.schedule.name,
        "outcome": result.outcome,
        "reason": result.reason,
        "error": result.error,
        "objections": result.objections,
        "launcher": {"name": result.schedule.launcher, "outcome": outcome, "why": why},
        "request": requests[0] if requests else None,
        "requests": requests,
        "job": _job(result),
    }


def _requests(result: DryRun) -> list[dict[str, Any]]:
    """Returns the jobs to launch; values that are not JSON are as Python writes them."""
    requests = result.evaluation.requests
    # Jobs that can't be made are missing.
    prepared: Sequence[PreparedJob | None] = result.prepared
    prepared = prepared or [None] * len(requests)
    pairs = zip(requests, prepared, strict=True)
    return [_call(result.schedule, request, job) for request, job in pairs]


def _call(row: Schedule, request: JobRequest, job: PreparedJob | None) -> dict[str, Any]:
    args, kwargs, options = request.args, request.kwargs, {**row.options, **request.options}
    if job is not None:  # includes what its template adds
        message = job.message
        args, kwargs, options = message.args, message.kwargs, {**message.options}
    queue = options.pop("queue", None) if job is not None else options.get("queue")
    return {
        "run_key": request.run_key,
        "task": request.task,
        "args": _plain(list(args)),
        "kwargs": _plain(dict(kwargs)),
        "options": _plain(options),
        "queue": str(queue or row.queue or "") or None,
    }


def _job(result: DryRun) -> dict[str, Any] | None:
    """Returns how its job would be queued and retried."""
    if not result.prepared:
        return None
    job = result.prepared[0].job
    return {
        "lane": job.lane,
        "priority": job.priority or 0,
        "max_attempts": job.max_attempts,
        "unique_key": job.unique_key,
        "awaits_approval": bool(job.awaits_approval),
        "waits_for": result.waits_for,
    }


def _plain(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        return repr(value)


def _launcher_outcome(evaluation: Evaluation) -> tuple[str, str | None]:
    """Returns the outcome without the policies' objections, and why."""
    result = evaluation.result
    if isinstance(result, Failure):
        return "failed", result.error
    return ("skipped", result.reason) if isinstance(result, Skip) else ("launched", None)


def _show(result: DryRun) -> None:
    why = result.reason or result.error
    requests = _requests(result)
    about = "" if why is None else line(why)
    if result.outcome == "launched" and len(requests) > 1:
        about = f"{len(requests)} jobs"
    elif result.outcome == "launched":
        about = line(_launch(requests[0]))
    style = printing.STYLES[result.outcome]
    printing.show(Text.assemble((_VERBS[result.outcome], style), f": {about}"))
    if result.outcome == "launched" and len(requests) > 1:
        printing.show_facts(None, *((line(call["run_key"]), _launch(call)) for call in requests))
    if result.waits_for is not None:
        noun = "Its first job" if len(requests) > 1 else "Its job"
        click.echo(f"{noun} would wait for {line(result.waits_for)}.")
    outcome, reason = _launcher_outcome(result.evaluation)
    others: list[tuple[str, str]] = [(o.policy, o.reason) for o in result.objections]
    if others:
        word = "condition" if result.schedule.launcher == "GenericLauncher" else "launcher"
        verb = {"launched": "would launch", "skipped": "says no", "failed": "fails"}[outcome]
        others.append((word, f"{verb}: {reason}" if reason else verb))
        printing.show_facts(None, *others)


def _launch(request: dict[str, Any]) -> str:
    parts = [str(request["task"])]
    for key in ("args", "kwargs", "options"):
        if request[key]:
            parts.append(f"{key} {printing.literal(request[key])}")
    if request["queue"]:
        parts.append(f"queue {request['queue']}")
    return ", ".join(parts)


def _remark(target: Target, result: DryRun) -> None:
    row = result.schedule
    if not row.enabled:
        printing.note(f"it is disabled ({line(row.disabled_reason)}), and not due.")
    elif row.paused_at is not None:
        printing.note("it is paused, and not due before it is resumed.")
    if not target.has_app and result.outcome == "launched":
        printing.note("whether there is such a task is not checked; with -A APP it would be.")
    if row.calendar is not None:
        target.note_zone(row)
