"""`pgbeat explain`: why a schedule did or didn't run."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import click
from rich.text import Text

from pgbeat import db, leases, schedules, ticks
from pgbeat.cli import printing
from pgbeat.cli.printing import line, relative, span, when
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option
from pgbeat.leases import Holder
from pgbeat.schedules import Schedule
from pgbeat.ticks import Entry

#: A beat that is alive decides sooner than this, conditions aside.
_PROMPT = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Answer:
    """Why a schedule is where it is: a word for programs, a sentence, and what to do."""

    cause: str
    summary: str
    advice: str = ""


@click.command("explain")
@click.argument("name")
@json_option
@pass_target
def explain_command(target: Target, name: str, as_json: bool) -> None:
    """Say why a schedule did or didn't run, and what to do about it."""
    settings = target.settings
    with target.transaction() as connection:
        now = db.now(connection)
        row = schedules.get(connection, name)
        history = ticks.history(connection, row.id, limit=1)
        holders = leases.holders(connection, settings.lock_key)
        backlog = schedules.count(connection)["due"]
    last = history[0] if history else None
    leader = next((holder for holder in holders if holder.leads), None)
    patience = timedelta(seconds=settings.condition_timeout)
    answer = explain(row, holders, backlog, now, settings.lock_key, patience)
    if as_json:
        printing.echo_json(
            {
                "schedule": row.name,
                "cause": answer.cause,
                "summary": answer.summary,
                "advice": answer.advice or None,
                "next_run": row.next_run,
                "last_tick": last,
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
                ("last tick", _last(last, now)),
                ("its job", _job(last)),
                ("next run", when(row.next_run, now) if waits else None),
                ("timetable", printing.timetable(row, target.timezone)),
                ("condition", _condition(row)),
                ("beat", "none" if leader is None else _beat(leader)),
            ]
        )
    )


def explain(
    row: Schedule,
    holders: Sequence[Holder],
    backlog: int,
    now: datetime,
    lock_key: int,
    patience: timedelta,
) -> Answer:
    """The first reason that applies: the row's own, then the beat's, then the time."""
    name = row.name
    if not row.enabled:
        return Answer(
            "disabled",
            f"it is disabled: {line(row.disabled_reason or 'no reason given')}.",
            f"`pgbeat enable {name}` puts it back in service.",
        )
    if row.paused_at is not None:
        return Answer(
            "paused",
            f"it is paused, since {when(row.paused_at, now)}.",
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
    if row.next_run is None:
        return _new(row, now)
    if not is_due:
        soon = relative(row.next_run, now)
        if row.retry_count:
            return Answer(
                "retry",
                f"it failed {row.retry_count} of {row.max_retries} times in a row and is tried "
                f"again {soon}: {line(row.last_error)}",
                f"`pgbeat trigger {name}` tries it now.",
            )
        return Answer("not_due", f"it is not due yet; next {soon}.")
    return _late(row, backlog, now, patience)


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
    asked = {"manual": ", by hand", "retry": ", a retry"}.get(last.trigger, "")
    why = line(last.reason or last.error or "")
    return Text.assemble(
        printing.styled(last.outcome),
        f" {relative(last.decided_at, now)}{asked}",
        f": {why}" if why else "",
    )


def _job(last: Entry | None) -> str | Text | None:
    if last is None or last.job_id is None:
        return None
    state = printing.styled(last.job_state or "gone")
    why = f": {line(last.job_error)}" if last.job_error else ""
    return Text.assemble(f"{last.job_id} ", state, why)


def _condition(row: Schedule) -> str | None:
    if row.launcher != "GenericLauncher":
        return row.launcher
    return None if row.condition_sql is None else line(row.condition_sql)


def _beat(holder: Holder) -> str:
    since = f" since {printing.utc(holder.since)} UTC" if holder.since else ""
    where = f" at {holder.client}" if holder.client else ""
    return f"{line(holder.application_name or f'session {holder.pid}')}{where}{since}"
