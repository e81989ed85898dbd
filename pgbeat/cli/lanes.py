"""`pgbeat lanes`: limits on what runs at once, and who waits in front of them."""

from datetime import datetime
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.cli import Noun, printing
from pgbeat.cli.asking import dry_run_option
from pgbeat.cli.options import json_object
from pgbeat.cli.printing import line, span
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option
from pgbeat.database import connections
from pgbeat.errors import InvalidJob
from pgbeat.jobs import lane_control
from pgbeat.jobs.lanes import concurrency, occupancy
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes.model import Lane, LaneUsage
from pgbeat.jobs.lanes.occupancy import InLine, SlotHolder


@click.group("lanes", cls=Noun)
def lanes_command() -> None:
    """Look at lanes, change them, hold them.

    A lane is a named limit on what runs at once, over all workers, with an ordered waiting line in
    front of it. A job whose policy names the lane gets its message only with a slot of it.
    """


# -- looked at


@lanes_command.command("list")
@json_option
@pass_target
def list_command(target: Target, as_json: bool) -> None:
    """List the lanes: their limits, how many run in each, and how many wait."""
    with target.transaction() as connection:
        now = connections.now(connection)
        rows = lanes.listing(connection, target.settings.namespace)
    printing.listing(
        rows, as_json=as_json, json_of=_json, table_of=lambda: _table(rows, now),
        none="There are no lanes; `pgbeat lanes set NAME --limit 1` makes one.",
    )  # fmt: skip


def _table(rows: list[LaneUsage], now: datetime) -> Table:
    numbers = ("running", "limit", "waiting")
    columns = ("lane", *numbers, "rate", "policy", "waits", "paused")
    table = printing.table(*columns, folding={"lane", "policy"}, numbers=numbers)
    for row in rows:
        lane = row.lane
        table.add_row(
            line(lane.name), str(row.running),
            "" if lane.max_running is None else str(lane.max_running), str(row.waiting),
            line(lane.rate or ""), line(_policy(lane) or ""), _since(row.waiting_since, now),
            Text(_since(lane.paused_at, now), style=printing.STYLES["paused"]),
        )  # fmt: skip
    return table


@lanes_command.command("show")
@click.argument("name")
@click.option("--limit", type=click.IntRange(0, 10_000), default=20, show_default=True,
              help="The first so many that wait.")  # fmt: skip
@json_option
@pass_target
def show_command(target: Target, name: str, limit: int, as_json: bool) -> None:
    """Show all about a lane: who has its slots, who waits, and why.

    A policy of the app's own is asked where the app is given (-A).
    """
    _import_policies(target)
    with target.transaction(dry_run=True) as connection:
        now = connections.now(connection)
        lane = lanes.get(connection, target.settings.namespace, name)
        [row] = [r for r in lanes.listing(connection, lane.namespace) if r.lane.name == name]
        holders = occupancy.holders(connection, lane)
        waiting = occupancy.line(connection, lane, limit=limit)
    if as_json:
        found = {
            "slots": [each._asdict() for each in holders],
            "line": [each._asdict() for each in waiting],
        }
        printing.echo_json(_json(row) | found)
        return
    click.secho(line(lane.name), bold=True)
    printing.show(
        printing.facts(
            [
                ("limit", "none" if lane.max_running is None else str(lane.max_running)),
                ("rate", lane.rate and line(lane.rate)),
                ("policy", _policy(lane) and line(_policy(lane))),
                ("running", str(row.running)),
                ("waiting", str(row.waiting)),
                ("paused", printing.when(lane.paused_at, now)),
                ("made", printing.when(lane.created_at, now)),
                ("changed", printing.when(lane.updated_at, now)),
            ]
        )
    )
    if holders:
        click.echo()
        printing.show(_slots(holders, now))
    if waiting:
        click.echo()
        printing.show(_line(waiting, now))
    if lane.policy not in (None, *concurrency.registered()) and not target.has_app:
        printing.note(f"policy {lane.policy!r} is the app's own; give the app with -A to ask it.")


def _slots(holders: list[SlotHolder], now: datetime) -> Any:
    table = printing.table("has a slot", "task", "state", "by", "for", folding={"task", "by"})
    for each in holders:
        table.add_row(
            line(each.id), line(each.task), printing.styled(each.state), line(each.by or ""),
            span(now - each.since),
        )  # fmt: skip
    return table


def _line(waiting: list[InLine], now: datetime) -> Any:
    columns = ("waits", "task", "priority", "of", "for", "why")
    table = printing.table(*columns, folding={"task", "of", "why"}, numbers={"priority"})
    for each in waiting:
        table.add_row(
            line(each.id), line(each.task), str(each.priority), line(each.created_by),
            span(now - each.created_at), line(each.reason or "gets the next slot"),
        )  # fmt: skip
    return table


def _json(row: LaneUsage) -> dict[str, Any]:
    figures: dict[str, Any] = row._asdict()
    del figures["lane"]
    return row.lane._asdict() | {"rate": row.lane.rate} | figures


def _policy(lane: Lane) -> str | None:
    if lane.policy is None:
        return None
    return " ".join(filter(None, (lane.policy, printing.compact(lane.options))))


def _since(moment: datetime | None, now: datetime) -> str:
    return "" if moment is None else f"for {span(now - moment, units=1)}"


# -- changed


@lanes_command.command("set")
@click.argument("name")
@click.option("--limit", type=click.IntRange(0, 1_000_000), metavar="N",
              help="So many at once; 0 for none.")  # fmt: skip
@click.option("--no-limit", is_flag=True, help="As many as there are workers.")
@click.option("--rate", metavar="N/TIME", help="So many a period, as 10/minute or 100/15 minutes.")
@click.option("--rate-key", metavar="KEY",
              help="Of each task, tag, created_by, or kwargs.NAME; all together.")  # fmt: skip
@click.option("--no-rate", is_flag=True, help="At any rate.")
@click.option("--policy", metavar="NAME", help="Which may run together: tasks, tags, resources …")
@click.option("--options", type=json_object, metavar="JSON",
              help="The policy's, an object, as '{\"gpu\": 2}'.")  # fmt: skip
@click.option("--no-policy", is_flag=True, help="Any may run together.")
@dry_run_option
@json_option
@pass_target
def set_command(target: Target, /, name: str, dry_run: bool, as_json: bool, **given: Any) -> None:
    """Make a lane, or change it. What no option names stays.

    Who may go by the new limits does at once, sent by this command where it has the app (-A), else
    by beat. What runs is let run. A policy of the app's own needs the app.
    """
    changes = _changes(given)
    _import_policies(target)
    with target.unit(dry_run=dry_run) as unit:
        lane, before, is_new = lane_control.save(unit, name, changes)
    if as_json:
        printing.echo_json(lane._asdict() | {"rate": lane.rate})
    elif before is not None and before._replace(updated_at=lane.updated_at) == lane:
        click.echo(f"Lane {name!r} is like that already: {_words(lane)}.")
    else:
        verbs = ("Would make", "Made") if is_new else ("Would change", "Changed")
        click.echo(f"{verbs[not dry_run]} lane {name!r}: {_words(lane)}.")


def _changes(given: dict[str, Any]) -> dict[str, Any]:
    """What the options say, as columns."""
    for flag, others in (
        ("limit", ("limit",)), ("rate", ("rate", "rate_key")), ("policy", ("policy", "options"))
    ):  # fmt: skip
        for other in others:
            if given[f"no_{flag}"] and given[other] is not None:
                option = other.replace("_", "-")
                raise click.UsageError(f"--{option} and --no-{flag} exclude each other")
    changes: dict[str, Any] = {}
    if given["limit"] is not None or given["no_limit"]:
        changes["max_running"] = given["limit"]
    if given["rate"] is not None:
        try:
            changes["rate_limit"], changes["rate_period"] = lanes.parse_rate(given["rate"])
        except InvalidJob as error:
            raise click.BadParameter(str(error), param_hint="'--rate'") from None
    if given["rate_key"] is not None:
        changes["rate_key"] = given["rate_key"]
    if given["no_rate"]:
        changes |= {"rate_limit": None, "rate_period": None, "rate_key": None}
    if given["policy"] is not None:
        changes["policy"] = given["policy"]
    if given["options"] is not None:
        changes["options"] = given["options"]
    if given["no_policy"]:
        changes |= {"policy": None, "options": {}}
    return changes


def _words(lane: Lane) -> str:
    """Its limits."""
    policy = _policy(lane)
    words = [
        "no limit" if lane.max_running is None else f"{lane.max_running} at once",
        line(lane.rate or ""),
        line(f"policy {policy}") if policy else "",
        "paused" if lane.paused_at is not None else "",
    ]
    return ", ".join(filter(None, words))


@lanes_command.command("remove")
@click.argument("name")
@click.option("--force", is_flag=True,
              help="Although jobs wait in it: they are handed out, without any limit.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Don't ask.")
@dry_run_option
@json_option
@pass_target
def remove_command(
    target: Target, name: str, force: bool, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Delete a lane that nothing waits in, and that no schedule or template names."""
    with target.unit(dry_run=True) as unit:
        _remove(unit, name, force)
    is_removed = not dry_run and (yes or click.confirm(f"Remove lane {name!r}?", err=as_json))
    if is_removed:
        with target.unit() as unit:
            _remove(unit, name, force)
    if as_json:
        printing.echo_json({"name": name, "removed": is_removed})
    elif dry_run:
        click.echo(f"Would remove lane {name!r}.")
    else:
        click.echo(f"Removed lane {name!r}." if is_removed else "Nothing is removed.")


def _remove(unit: UnitOfWork, name: str, force: bool) -> None:
    try:
        lane_control.remove(unit, name, force=force)
    except InvalidJob as error:
        said = f"{error}; with --force it is removed, and what waits is dispatched without a limit"
        raise InvalidJob.of("", error.problems[0].code, said) from None


@lanes_command.command("pause")
@click.argument("name")
@json_option
@pass_target
def pause_command(target: Target, name: str, as_json: bool) -> None:
    """Hand out nothing more. What has a slot goes on; schedules skip, with the reason."""
    with target.unit() as unit:
        lane, is_new = lane_control.pause(unit, name)
        now = connections.now(unit.connection)
    if as_json:
        printing.echo_json(lane._asdict() | {"rate": lane.rate})
    elif is_new:
        click.echo(f"Paused lane {name!r}.")
    else:
        click.echo(f"Lane {name!r} is paused already, since {printing.when(lane.paused_at, now)}.")


@lanes_command.command("resume")
@click.argument("name")
@json_option
@pass_target
def resume_command(target: Target, name: str, as_json: bool) -> None:
    """Hand out what waits. Sent by this command where it has the app (-A), else by beat."""
    with target.unit() as unit:
        lane, was_paused = lane_control.resume(unit, name)
    if as_json:
        printing.echo_json(lane._asdict() | {"rate": lane.rate})
    else:
        click.echo(f"Resumed lane {name!r}." if was_paused else f"Lane {name!r} is not paused.")


def _import_policies(target: Target) -> None:
    """Has the app's policies registered, where there is an app."""
    if target.has_app:
        target.require_app("policies")
