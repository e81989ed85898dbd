"""Shows what `pgbeat import` does."""

from collections import Counter
from typing import Any

import click

from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.printing import Cell, counted, line, when
from pgbeat.cli.terminal.tables import glued
from pgbeat.schedules.importers.imported import Inventory
from pgbeat.schedules.importers.plan import Action, Circumstances, ImportStep
from pgbeat.schedules.model import Schedule

#: What is written, and how it is said: done, or in a dry run.
WRITTEN = {
    Action.ADD: ("Added", "Would add"),
    Action.REPLACE: ("Replaced", "Would replace"),
    Action.CARRY_OVER: ("Carried the last run over to", "Would carry the last run over to"),
}
_LEFT = {Action.CONFLICT: "Left as they are", Action.REFUSE: "Not imported"}


def show(inventory: Inventory, steps: list[ImportStep], now: Circumstances, dry_run: bool) -> None:
    """Prints what an import does, and what it leaves."""
    count = Counter(step.action for step in steps)
    click.echo(f"{counted(len(steps), 'schedule')} of {inventory.beat} in {inventory.place}.")
    for action, verbs in WRITTEN.items():
        if count[action]:
            click.echo(f"{verbs[dry_run]} {counted(count[action], 'schedule')}:")
            _table([step for step in steps if step.action == action], now)
    for action, words in _LEFT.items():
        if count[action]:
            click.echo(f"{words}:")
            left = [step for step in steps if step.action == action]
            printing.show_facts(None, *((line(step.origin), line(step.reason)) for step in left))
    if not any(count[action] for action in WRITTEN):
        same = count[Action.NOTHING]
        here = f": {counted(same, 'schedule')} here already" if same else ""
        click.echo(f"Nothing to do{here}.")
    elif count[Action.NOTHING]:
        click.echo(f"{counted(count[Action.NOTHING], 'schedule')} here already.")


def _table(steps: list[ImportStep], now: Circumstances) -> None:
    table: list[dict[str, Cell]] = []
    for step in steps:
        cells: dict[str, Cell] = {
            "schedule": step.name,
            "timetable": glued(line(_timetable(step))),
            "last run": printing.utc(step.values.get("last_run")) or "-",
            "next": _next(step, now),
        }
        changed = [] if step.name == step.origin else [f"its name was {step.origin!r}"]
        remarks = [*changed, *step.remarks]
        table += [cells, *(dict.fromkeys(cells) | {"timetable": remark} for remark in remarks)]
    printing.show_table(table, names={"schedule", "timetable"})


def _timetable(step: ImportStep) -> str:
    values = {**(step.row._asdict() if step.row else {}), **step.values}
    blank: dict[str, Any] = dict.fromkeys(Schedule._fields)
    return printing.timetable(Schedule(**{**blank, **values}))


def _next(step: ImportStep, now: Circumstances) -> str:
    if step.values.get("disabled_reason"):
        return str(step.values["disabled_reason"])
    if "next_run" not in step.values:
        return "-"
    return when(step.values["next_run"], now.now) or "when beat starts"


def as_json(
    name: str, inventory: Inventory, steps: list[ImportStep], dry_run: bool
) -> dict[str, Any]:
    """Returns the same for programs."""
    return {
        "source": name,
        "from": inventory.place,
        "dry_run": dry_run,
        "schedules": [
            {
                "origin": step.origin,
                "name": step.name,
                "action": step.action.replace(" ", "_"),
                "reason": step.reason,
                "remarks": list(step.remarks),
                "values": {key: value for key, value in step.values.items() if key != "the_id"},
            }
            for step in steps
        ],
    }
