"""`pgbeat lanes`: limits on what runs at once, and the jobs that wait for a slot."""

from datetime import datetime
from functools import partial
from typing import Any

import click
from rich.text import Text

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.cli import Noun
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.asking import asking, changing, remove
from pgbeat.cli.terminal.options import FLAG, JSON_OBJECT, adding, option, whole
from pgbeat.cli.terminal.printing import Cell, line, short_id, span
from pgbeat.cli.terminal.target import Target, on_named, on_target
from pgbeat.database import connections
from pgbeat.errors import InvalidJob
from pgbeat.jobs.lanes import concurrency, occupancy
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes.model import Lane, LaneUsage
from pgbeat.jobs.lanes.occupancy import InLine, SlotHolder
from pgbeat.jobs.verbs import lane_control
from pgbeat.views import lanes as views


@click.group("lanes", cls=Noun)
def lanes_command() -> None:
    """Look at lanes, change them, hold them.

    A lane is a named limit on what runs at once, over all workers, with an ordered waiting line. A
    job whose policy names the lane gets its message only with a slot of it.
    """


@lanes_command.command("list")
@on_target
def list_command(target: Target) -> None:
    """List the lanes: their limits, how many jobs run in each, and how many wait."""
    with target.reading() as (connection, now):
        rows = lanes.listing(connection, target.namespace)
    printing.show_listing(
        rows,
        json_of=views.usage,
        cells_of=lambda row: _cells(row, now),
        names={"lane"},
        folding={"fair", "policy"},
        none="There are no lanes; `pgbeat lanes set NAME --limit 1` makes one.",
    )


def _cells(row: LaneUsage, now: datetime) -> dict[str, Cell]:
    lane = row.lane
    return {
        "lane": lane.name,
        "running": row.running,
        "limit": lane.max_running,
        "waiting": row.waiting,
        "rate": _rate(lane, now),
        "fair": lane.fairness,
        "policy": _policy(lane),
        "waits": _since(row.waiting_since, now),
        "paused": Text(_since(lane.paused_at, now), style=printing.STYLES["paused"]),
    }


@lanes_command.command("show")
@click.argument("name")
@option("--limit", click.IntRange(0, 10_000), "How many waiting jobs to show.", default=20)
@on_target
def show_command(target: Target, name: str, limit: int) -> None:
    """Show all about a lane: its slots, and the waiting jobs with the reason.

    The reasons of a policy in the app's code need the app (-A).
    """
    _import_policies(target)
    with target.reading() as (connection, now):
        lane = lanes.get(connection, name, namespace=target.namespace)
        [row] = [r for r in lanes.listing(connection, lane.namespace) if r.lane.name == name]
        holders = occupancy.holders(connection, lane)
        waiting = occupancy.line(connection, lane, limit=limit)
    if printing.is_json():
        printing.echo_json(views.detail(row, holders, waiting))
        return
    printing.show_facts(
        lane.name,
        ("limit", "none" if lane.max_running is None else lane.max_running),
        ("rate", _rate(lane, now)),
        ("fair", lane.fairness),
        ("policy", _policy(lane)),
        ("running", row.running),
        ("waiting", row.waiting),
        ("paused", printing.when(lane.paused_at, now)),
        ("made", printing.when(lane.created_at, now)),
        ("changed", printing.when(lane.updated_at, now)),
    )
    if holders:
        click.echo()
        printing.show_table([_slot(holder, now) for holder in holders], names={"task", "by"})
    if waiting:
        click.echo()
        printing.show_table(
            [_waits(job, now) for job in waiting], names={"task", "of"}, folding={"why"}
        )
    if lane.policy not in (None, *concurrency.registered()) and not target.has_app:
        printing.note(f"policy {lane.policy!r} is in the app's code; give the app with -A.")


def _slot(holder: SlotHolder, now: datetime) -> dict[str, Cell]:
    return {
        "has a slot": short_id(holder.id),
        "task": holder.task,
        "state": printing.styled(holder.state),
        "by": holder.by,
        "for": span(now - holder.since),
    }


def _waits(job: InLine, now: datetime) -> dict[str, Cell]:
    return {
        "waits": short_id(job.id),
        "task": job.task,
        "priority": job.priority,
        "of": job.created_by,
        "for": span(now - job.created_at),
        "why": job.reason or "gets the next slot",
    }


def _rate(lane: Lane, now: datetime | None = None) -> str | None:
    """Returns the rate in words; at `now`, without one that is over."""
    current = lane if now is None else lane.at(now)
    if current.temporary_until is None:
        return current.rate
    left = "" if now is None else f" for {span(current.temporary_until - now)}"
    return f"{current.temporary_rate}{left}, then {lane.rate or 'any'}"


def _policy(lane: Lane) -> str | None:
    return lane.policy and f"{lane.policy} {printing.compact(lane.options)}".rstrip()


def _since(moment: datetime | None, now: datetime) -> str:
    return "" if moment is None else f"for {span(now - moment, units=1)}"


_limits = adding(
    option("--limit", whole(0, 1_000_000), "How many jobs may run at once; 0 for none."),
    option("--no-limit", FLAG, "As many as there are workers."),
    option("--rate", "N/TIME", "How many jobs may start in a period: 10/minute or 100/15 minutes."),
    option(
        "--rate-key",
        "KEY",
        "Count them by task, tag, created_by or kwargs.NAME; by default together.",
    ),
    option(
        "--rate-unit",
        "NAME",
        "A job takes as much of the rate as it needs of this resource; else 1.",
    ),
    option("--for", "TIME", "Return to the old rate after so long, as '10 minutes'.", "for_"),
    option("--no-rate", FLAG, "At any rate."),
    option(
        "--fair-by",
        "KEY",
        "Jobs of each KEY take turns: task, created_by, tag, tag:PREFIX or kwargs.NAME.",
    ),
    option(
        "--limit-per",
        "KEY N",
        "They take turns, and N of each KEY may run at once.",
        nargs=2,
        type=(str, click.IntRange(0, 1_000_000)),
    ),
    option("--no-fair", FLAG, "Jobs wait by their place only."),
    option("--policy", "NAME", "Which jobs may run together: tasks, tags, resources …"),
    option("--options", JSON_OBJECT, "The policy's options, an object, as '{\"gpu\": 2}'."),
    option("--no-policy", FLAG, "Any jobs may run together."),
)


@lanes_command.command("set")
@click.argument("name")
@_limits
@changing
def set_command(target: Target, /, name: str, dry_run: bool, **options: Any) -> None:
    """Make a lane, or change what the options name.

    A new lane needs --limit, --rate or --policy, or else --no-limit.

    Jobs that the new limits admit are dispatched by this command if it has the app (-A), else by
    beat. Running jobs continue. A policy in the app's code needs the app.
    """
    changes = _changes(options)
    _import_policies(target)
    with target.unit(dry_run=dry_run) as unit:
        try:
            lane, before, is_new = lane_control.save(unit, name, changes)
        except InvalidJob as error:
            if error.problems[0].code != "required":
                raise
            message = f"{error}: --limit N, --rate, --policy or --no-limit"
            raise InvalidJob.of("max_running", "required", message) from None
    verbs = ("Would make", "Made") if is_new else ("Would change", "Changed")
    message = f"{verbs[not dry_run]} lane {name!r}: {_words(lane)}."
    if before is not None and before._replace(updated_at=lane.updated_at) == lane:
        message = f"Lane {name!r} is like that already: {_words(lane)}."
    printing.result(views.lane(lane), message)


_COLUMNS = ("rate", "rate_key", "rate_unit", "policy", "options", "fair_by")
#: Options that the flag `--no-…` excludes.
_EXCLUDED = {
    "limit": ("limit",),
    "rate": ("rate", "rate_key", "rate_unit", "for_"),
    "policy": ("policy", "options"),
    "fair": ("fair_by", "limit_per"),
}


def _changes(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the columns that the options set or clear."""
    for other, names in _EXCLUDED.items():
        for name in names:
            if options[f"no_{other}"] and options[name] is not None:
                flag = name.strip("_").replace("_", "-")
                raise click.UsageError(f"--{flag} and --no-{other} exclude each other")
    if options["fair_by"] is not None and options["limit_per"] is not None:
        raise click.UsageError("--fair-by and --limit-per exclude each other")
    asked = {name: options[name] for name in _COLUMNS if options[name] is not None}
    asked |= {name: None for name in ("rate", "policy") if options[f"no_{name}"]}
    if options["no_fair"]:
        asked["fair_by"] = None
    if options["limit"] is not None or options["no_limit"]:
        asked["max_running"] = options["limit"]
    if options["for_"] is not None:
        asked["rate_for"] = options["for_"]
    if options["fair_by"] is not None:
        asked["max_per_key"] = None
    if options["limit_per"] is not None:
        asked["fair_by"], asked["max_per_key"] = options["limit_per"]
    try:
        return lane_control.read_changes(asked)
    except InvalidJob as error:
        flag = "for" if error.problems[0].field == "rate_for" else "rate"
        raise click.BadParameter(str(error), param_hint=f"'--{flag}'") from None


def _words(lane: Lane) -> str:
    """Returns a lane's limits."""
    policy = _policy(lane)
    words = [
        "no limit" if lane.max_running is None else f"{lane.max_running} at once",
        line(_rate(lane) or ""),
        line(lane.fairness or ""),
        line(f"policy {policy}") if policy else "",
        "paused" if lane.paused_at is not None else "",
    ]
    return ", ".join(filter(None, words))


@lanes_command.command("remove")
@click.argument("name")
@option("--force", FLAG, "Even if jobs wait in it: dispatch them all.")
@asking
def remove_command(target: Target, name: str, force: bool, yes: bool, dry_run: bool) -> None:
    """Delete a lane that no job waits in, and that no schedule or template names."""
    remove(target, "lane", name, partial(_remove, force=force), yes=yes, dry_run=dry_run)


def _remove(unit: UnitOfWork, name: str, *, force: bool) -> None:
    try:
        lane_control.remove(unit, name, force=force)
    except InvalidJob as error:
        message = f"{error}; --force removes it, and dispatches what waits without a limit"
        raise InvalidJob.of("", error.problems[0].code, message) from None


@lanes_command.command("pause")
@on_named
def pause_command(target: Target, name: str) -> None:
    """Dispatch no more jobs of a lane. Running jobs continue; schedules skip, with the reason."""
    with target.unit() as unit:
        lane, is_new = lane_control.pause(unit, name)
        now = connections.now(unit.connection)
    already = f"Lane {name!r} is paused already, since {printing.when(lane.paused_at, now)}."
    printing.result(views.lane(lane), f"Paused lane {name!r}." if is_new else already)


@lanes_command.command("resume")
@on_named
def resume_command(target: Target, name: str) -> None:
    """Dispatch what waits: by this command if it has the app (-A), else by beat."""
    with target.unit() as unit:
        lane, was_paused = lane_control.resume(unit, name)
    message = f"Resumed lane {name!r}." if was_paused else f"Lane {name!r} is not paused."
    printing.result(views.lane(lane), message)


def _import_policies(target: Target) -> None:
    """Imports the app, if there is one, which registers its policies."""
    if target.has_app:
        target.require_app("policies")
