"""`pgbeat sync` and `export`: schedules as a file declares them."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.text import Text
from sqlalchemy import Connection

from pgbeat.access import audit
from pgbeat.cli import printing
from pgbeat.cli.failures import SKIPPED
from pgbeat.cli.printing import counted, line
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option
from pgbeat.database import lock_waits
from pgbeat.errors import Busy, ConfigError
from pgbeat.schedules import calendars
from pgbeat.schedules import model as schedules
from pgbeat.schedules.calendars import Calendar
from pgbeat.schedules.files import File, InvalidFile, exports, read
from pgbeat.schedules.files.definitions import timetables
from pgbeat.schedules.files.plans import Change, Plan, make
from pgbeat.schedules.files.rows import apply, lock
from pgbeat.schedules.model import Schedule

#: Exit status of `sync --plan` where there is something to do.
PENDING = SKIPPED
#: How long a sync waits for another, in seconds.
_PATIENCE = 60.0
#: How often a plan is made anew because rows changed meanwhile.
_TIMES = 5


@click.command("sync")
@click.argument(
    "path", metavar="[FILE]", required=False,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
)  # fmt: skip
@click.option("--plan", "is_plan", is_flag=True, help="Say what would be done.")
@click.option("--prune", is_flag=True, help="Remove what came from a file and is not in this one.")
@click.option("--adopt", is_flag=True, help="Take over names that were made elsewhere.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of files, for editors.")
@json_option
@click.pass_context
@pass_target
def sync_command(
    target: Target,
    ctx: click.Context,
    path: str | None,
    is_plan: bool,
    prune: bool,
    adopt: bool,
    schema: bool,
    as_json: bool,
) -> None:
    """Make the schedules be what a file says: YAML, or JSON by its name (- is standard input).

    A plan is shown and applied in one transaction. --plan exits with 3 if there is something to
    do. With the app (-A), tasks, launchers and arguments are checked against what it has
    registered.
    """
    if schema:
        from pgbeat.schedules.files.schema import schema as written

        click.echo(written(), nl=False)
        return
    if path is None:
        raise click.UsageError("which file? Name one, or - for standard input")
    file = _file(target, path)
    namespace = file.namespace or target.settings.namespace
    ways = {"prune": prune, "adopt": adopt}
    for _ in range(_TIMES):
        with target.transaction() as connection:
            plan = make(connection, file, namespace, **ways)
        _check_conditions(target, file, plan)
        if not as_json:
            _show(file, plan)
        if is_plan or _apply(target, file, plan, ways):
            break
        printing.note("schedules were changed meanwhile; here is what there is to do now.")
    else:
        raise Busy("schedules are being changed all the time; nothing is written, try again")
    if as_json:
        printing.echo_json(_json(file, plan, is_applied=not is_plan))
    else:
        _conclude(plan, is_plan)
    _remark(target, file, plan)
    if is_plan and plan:
        ctx.exit(PENDING)


def _file(target: Target, path: str) -> File:
    from pgbeat.schedules.files.checks import launchable

    label = "<stdin>" if path == "-" else path
    written = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    try:
        content = written.decode()
    except UnicodeDecodeError as error:
        number = written[: error.start].count(b"\n") + 1
        raise ConfigError(f"{label}:{number}: it is not UTF-8") from None
    is_json = _is_json(content) if path == "-" else path.lower().endswith(".json")
    functions = target.settings.allowed_functions
    check = launchable(target.registry)
    return read(content, label, is_json=is_json, functions=functions, check=check)


def _is_json(content: str) -> bool:
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return False
    return True


def _check_conditions(target: Target, file: File, plan: Plan) -> None:
    """Refuses new conditions that could never run."""
    from pgbeat.schedules.files.checks import conditions

    names = [name for name, definition in plan.added.items() if "condition_sql" in definition]
    names += [n for n, c in plan.changed.items() if any(i.field == "condition_sql" for i in c)]
    if names:
        with target.session() as connection:
            mistakes = conditions(connection, (file.definitions[name] for name in names))
        if mistakes:
            raise InvalidFile(file.label, mistakes)


def _apply(target: Target, file: File, plan: Plan, ways: dict[str, bool]) -> bool:
    """Does what the plan says, unless it isn't what there is to do any more."""
    if not plan and not plan.noted:
        return True
    try:
        with target.unit() as unit:
            connection, unit.namespace = unit.connection, plan.namespace
            lock_waits.limit_waiting(connection, _PATIENCE)
            lock(connection, plan)
            again = make(connection, file, plan.namespace, **ways)
            if again != plan:
                return False
            old_calendars, old_rows = _touched(connection, again)
            apply(connection, file, again)
            new_calendars, new_rows = _touched(connection, again)
            unit.record_all(audit.compared(old_calendars, new_calendars))
            unit.record_all(audit.compared(old_rows, new_rows))
    except Busy:
        return False
    return True


def _touched(connection: Connection, plan: Plan) -> tuple[dict[str, Calendar], dict[str, Schedule]]:
    """The rows that a plan is about, by name."""
    own = (*plan.calendars_added, *plan.calendars_changed)
    names = (*plan.added, *plan.changed, *plan.adopted, *plan.removed, *plan.noted)
    return (
        dict(calendars.load(connection, own, namespace=plan.namespace)),
        schedules.named(connection, names, namespace=plan.namespace),
    )


# -- what is shown ---------------------------------------------------------------------------------


def _show(file: File, plan: Plan) -> None:
    if not plan:
        return
    click.echo(f"Plan for {file.label} (namespace {plan.namespace!r}):")
    written = [Text(f"  {sign} ", style).append(said, "") for sign, style, said in _lines(plan)]
    printing.show(Text("\n").join(written))


def _lines(plan: Plan) -> Iterator[tuple[str, str, str]]:
    for name in plan.calendars_added:
        yield "+", "green", f"calendar {line(name)}"
    for name in plan.calendars_changed:
        yield "~", "yellow", f"calendar {line(name)}"
    for name, definition in plan.added.items():
        (when,) = timetables(definition)
        what = definition.get("task") or definition.get("launcher") or _template(definition)
        yield "+", "green", f"{line(name)}: {line(what)}, {when} {line(definition[when])}"
    for name in dict.fromkeys((*plan.adopted, *plan.changed)):
        source = plan.adopted.get(name)
        remark = f" (made by {source}, the file's from now on)" if source else ""
        yield "~", "yellow", f"{line(name)}{remark}"
        for change in plan.changed.get(name, ()):
            yield " ", "", f"    {_changed(change)}"
    for name in plan.removed:
        yield "-", "red", line(name)


def _template(definition: Mapping[str, Any]) -> str:
    """What is launched where a definition names neither a task nor a launcher."""
    return f"template {definition['job_policy']['template']}"


def _changed(change: Change) -> str:
    said = f"{change.field}: {_value(change.old)} → {_value(change.new)}"
    if change.by_hand:
        said += f" (drift: the last sync wrote {_value(change.was)})"
    return said


def _value(value: Any) -> str:
    if value is None:
        return "none"
    said = line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return said if len(said) <= 200 else f"{said[:199]}…"


def _conclude(plan: Plan, is_plan: bool) -> None:
    total = counted(plan.unchanged, "schedule")
    if not plan:
        verb = "is" if plan.unchanged == 1 else "are"
        click.echo(f"Nothing to do: {total} {verb} as the file says.")
        return
    counts = {
        "added": len(plan.added) + len(plan.calendars_added),
        "changed": len({*plan.changed} - {*plan.adopted}) + len(plan.calendars_changed),
        "removed": len(plan.removed),
        "adopted": len(plan.adopted),
    }
    if is_plan:
        words = {"added": "add", "changed": "change", "removed": "remove", "adopted": "adopt"}
        done = [f"{count} to {words[verb]}" for verb, count in counts.items() if count]
    else:
        done = [f"{count} {verb}" for verb, count in counts.items() if count]
    drift = f", {len(plan.drifted)} of which had drifted" if plan.drifted else ""
    click.echo(f"{', '.join(done)}{drift}; {plan.unchanged} unchanged.".capitalize())


def _remark(target: Target, file: File, plan: Plan) -> None:
    if plan.kept:
        printing.note(f"not in the file, and kept: {_names(plan.kept)}; --prune removes them.")
    if plan.taken:
        taken = [f"{name} ({source})" for name, source in plan.taken.items()]
        printing.note(f"made elsewhere, and left alone: {_names(taken)}; --adopt takes them over.")
    if file.namespace is not None and target.has_app:
        own = target.settings.namespace
        if own != file.namespace:
            printing.note(f"the app's schedules are in namespace {own!r}, the file's are not.")
    if file.definitions and not target.has_app:
        printing.note("tasks and launchers are not checked; with -A APP they would be.")


def _names(names: list[str]) -> str:
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(line(name) for name in names[:20]) + more


def _json(file: File, plan: Plan, *, is_applied: bool) -> dict[str, Any]:
    def changes(name: str) -> dict[str, Any]:
        return {
            change.field: {"old": change.old, "new": change.new}
            | ({"drift": True, "last_sync": change.was} if change.by_hand else {})
            for change in plan.changed.get(name, ())
        }

    return {
        "file": file.label,
        "namespace": plan.namespace,
        "applied": is_applied,
        "changes": bool(plan),
        "add": plan.added,
        "change": {name: changes(name) for name in plan.changed if name not in plan.adopted},
        "remove": plan.removed,
        "adopt": {
            name: {"source": source, "change": changes(name)}
            for name, source in plan.adopted.items()
        },
        "calendars": {"add": plan.calendars_added, "change": plan.calendars_changed},
        "kept": plan.kept,
        "taken": plan.taken,
        "unchanged": plan.unchanged,
    }


# -- export ----------------------------------------------------------------------------------------


@click.command("export")
@click.argument("names", nargs=-1)
@click.option("--format", "form", type=click.Choice(["yaml", "json"]), default="yaml",
              show_default=True, help="What to write.")  # fmt: skip
@pass_target
def export_command(target: Target, names: tuple[str, ...], form: str) -> None:
    """Write the schedules as a file that declares them: all but the code's, or those named."""
    namespace = target.settings.namespace
    with target.transaction() as connection:
        if names:
            rows = [schedules.get(connection, name, namespace=namespace) for name in names]
        else:
            rows = schedules.listing(connection, namespace=namespace)
        used = {row.calendar for row in rows}
        found = calendars.listing(connection, namespace=namespace)
    from_code = [row.name for row in rows if row.source == "code" and not names]
    declared = exports.document(
        [row for row in rows if names or row.source != "code"],
        [calendar for calendar in found if not names or calendar.name in used],
        namespace,
    )
    click.echo(_written(declared, form), nl=False)
    if from_code:
        printing.note(f"made by the app's code, and left out: {_names(from_code)}.")


def _written(document: dict[str, Any], form: str) -> str:
    if form == "json":
        return exports.as_json(document)
    try:
        from pgbeat.schedules.files import yaml_documents
    except ImportError:
        raise ConfigError(
            "YAML needs PyYAML, which is not installed; `pip install 'pgbeat[yaml]'`, or use "
            "--format json"
        ) from None
    return yaml_documents.write(document)
