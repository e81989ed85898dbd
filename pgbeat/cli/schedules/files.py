"""`pgbeat sync` and `export`: files that declare schedules."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.text import Text
from sqlalchemy.exc import DBAPIError

from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.failures import SKIPPED
from pgbeat.cli.terminal.options import FLAG, option
from pgbeat.cli.terminal.printing import counted, line, shortened
from pgbeat.cli.terminal.target import Target, on_target, pass_target
from pgbeat.database import privileges
from pgbeat.database.locks import lock_waits
from pgbeat.errors import Busy, ConfigError, PgbeatError
from pgbeat.schedules import model as schedules
from pgbeat.schedules.files import File, Mistake, exports, read
from pgbeat.schedules.files.definitions import timetables
from pgbeat.schedules.files.fields import FieldChange
from pgbeat.schedules.files.nouns import nouns
from pgbeat.schedules.files.nouns.comparing import SectionPlan
from pgbeat.schedules.files.nouns.noun import FileSection
from pgbeat.schedules.files.plans import Plan, make
from pgbeat.schedules.files.rows import apply, lock

#: Exit status of `sync --plan` if there is something to do.
PENDING = SKIPPED
#: How long a sync waits for another, in seconds.
_PATIENCE = 60.0
#: How often a sync plans again because rows have changed meanwhile.
_TIMES = 5


@click.command("sync")
@click.argument(
    "path",
    metavar="[FILE]",
    required=False,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
)
@option("--plan", FLAG, "Say what would be done.", "is_plan")
@option("--prune", FLAG, "Remove what came from a file and is not in this one.")
@option("--adopt", FLAG, "Take over what was made elsewhere.")
@option("--schema", FLAG, "Print the JSON Schema of files, for editors.")
@on_target
def sync_command(
    target: Target, /, path: str | None, is_plan: bool, schema: bool, **ways: bool
) -> None:
    """Make the schedules match a file: YAML, or JSON by its name (- is standard input).

    So too the calendars, lanes, templates and webhooks, if the file declares them.

    Shows a plan and applies it in one transaction. --plan exits with 3 if there is something to
    do. With the app (-A), tasks, launchers and arguments are checked against what it has
    registered.

    Its JSON has `file`, `namespace`, `applied`, `changes`, and of schedules `add`, `change` (`old`,
    `new`, `drift`, `last_sync` by field), `remove`, `adopt`, `kept`, `taken` and `unchanged`; the
    same in `calendars`, `lanes`, `templates` and `webhooks`.
    """
    if schema:
        from pgbeat.schedules.files.schema import schema as written

        printing.result(json.loads(written()), written().rstrip())
        return
    if path is None:
        raise click.UsageError("which file? Name one, or - for standard input")
    file = _file(target, path)
    namespace = file.namespace or target.namespace
    for _ in range(_TIMES):
        plan = _plan(target, file, namespace, ways)
        if not printing.is_json():
            _show(file, plan)
        if is_plan or _apply(target, file, plan, ways):
            break
        printing.note("schedules were changed meanwhile; here is the new plan.")
    else:
        raise Busy("schedules keep being changed; nothing is written, try again")
    if printing.is_json():
        printing.echo_json(_json(file, plan, is_applied=not is_plan))
    else:
        _conclude(plan, is_plan)
    _remark(target, file, plan)
    if is_plan and plan:
        raise click.exceptions.Exit(PENDING)


def _file(target: Target, path: str) -> File:
    from pgbeat.schedules.files.checks import launchable

    label, content, is_json = text_of(path)
    functions = target.settings.allowed_functions
    return read(
        content,
        label,
        is_json=is_json,
        functions=functions,
        nouns=nouns(private=target.settings.webhook_private),
        check=launchable(target.registry),
    )


def text_of(path: str) -> tuple[str, str, bool]:
    """Returns a file's label in messages, its text, and whether it is JSON; `-` is standard input.

    Raises `ConfigError` for a text that is not UTF-8.
    """
    label = "<stdin>" if path == "-" else path
    written = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    try:
        content = written.decode()
    except UnicodeDecodeError as error:
        number = written[: error.start].count(b"\n") + 1
        raise ConfigError(f"{label}:{number}: it is not UTF-8") from None
    return label, content, _is_json(content) if path == "-" else path.lower().endswith(".json")


def _is_json(content: str) -> bool:
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return False
    return True


def _plan(target: Target, file: File, namespace: str, ways: dict[str, bool]) -> Plan:
    """Returns the plan. Raises `InvalidFile` for mistakes, also those that the database finds."""
    try:
        with target.transaction() as connection:
            plan = make(connection, file, namespace, **ways)
        wrong = _wrong_conditions(target, file, plan)
    except (PgbeatError, DBAPIError):
        file.require_valid()
        raise
    file.require_valid([*plan.mistakes, *wrong])
    return plan


def _wrong_conditions(target: Target, file: File, plan: Plan) -> list[Mistake]:
    """Returns the mistakes of new conditions that could never run."""
    from pgbeat.schedules.files.checks import conditions

    names = [name for name, definition in plan.added.items() if "condition_sql" in definition]
    names += [n for n, c in plan.changed.items() if any(i.field == "condition_sql" for i in c)]
    if not names:
        return []
    with target.session() as connection:
        return conditions(connection, (file.definitions[name] for name in names))


def _apply(target: Target, file: File, plan: Plan, ways: dict[str, bool]) -> bool:
    """Applies the plan, unless rows have changed since; returns whether it did."""
    if not plan and not plan.is_noted:
        return True
    try:
        with target.unit() as unit:
            connection, unit.namespace = unit.connection, plan.namespace
            lock_waits.limit_waiting(connection, _PATIENCE)
            lock(connection, plan)
            again = make(connection, file, plan.namespace, **ways)
            if again != plan:
                return False
            apply(unit, file, again)
    except Busy:
        return False
    return True


def _show(file: File, plan: Plan) -> None:
    if not plan:
        return
    click.echo(f"Plan for {file.label} (namespace {plan.namespace!r}):")
    written = [Text(f"  {sign} ", style).append(words, "") for sign, style, words in _lines(plan)]
    printing.show(Text("\n").join(written))


def _lines(plan: Plan) -> Iterator[tuple[str, str, str]]:
    for section in plan.sections.values():
        yield from _lines_of(section)
    for name, definition in plan.added.items():
        (when,) = timetables(definition)
        what = definition.get("task") or definition.get("launcher")
        what = what or f"template {definition['job_policy']['template']}"
        yield "+", "green", f"{line(name)}: {line(what)}, {when} {line(definition[when])}"
    yield from _changes(plan, "")


def _lines_of(plan: SectionPlan) -> Iterator[tuple[str, str, str]]:
    noun = f"{plan.section.noun.name} "
    for name, definition in plan.added.items():
        fields = ", ".join(f"{field} {_value(value)}" for field, value in definition.items())
        yield "+", "green", f"{noun}{line(name)}: {fields}"
    yield from _changes(plan, noun)


def _changes(plan: Plan | SectionPlan, noun: str) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys((*plan.adopted, *plan.changed)):
        source = plan.adopted.get(name) or "hand"
        remark = f" (made by {source}, the file's from now on)" if name in plan.adopted else ""
        yield "~", "yellow", f"{noun}{line(name)}{remark}"
        for change in plan.changed.get(name, ()):
            yield " ", "", f"    {_changed(change)}"
    for name in plan.removed:
        yield "-", "red", f"{noun}{line(name)}"


def _changed(change: FieldChange) -> str:
    text = f"{change.field}: {_value(change.old)} → {_value(change.new)}"
    if change.by_hand:
        text += f" (drift: the last sync wrote {_value(change.was)})"
    return text


def _value(value: Any) -> str:
    if value is None:
        return "none"
    text = line(printing.literal(value))
    return text if len(text) <= 200 else f"{text[:199]}…"


def _parts(plan: Plan) -> list[tuple[str, Plan | SectionPlan]]:
    """Returns the plan of each noun, with the noun; of schedules with ""."""
    return [("", plan), *((part.section.noun.name, part) for part in plan.sections.values())]


def _conclude(plan: Plan, is_plan: bool) -> None:
    parts = [part for _, part in _parts(plan)]
    unchanged = sum(part.unchanged for part in parts)
    if not plan:
        numbers = {noun or "schedule": part.unchanged for noun, part in _parts(plan)}
        shown = [counted(number, noun) for noun, number in numbers.items() if number]
        total = ", ".join(shown) or counted(0, "schedule")
        verb = "is" if unchanged == 1 else "are"
        click.echo(f"Nothing to do: {total} {verb} as the file says.")
        return
    counts = {
        "add": sum(len(part.added) for part in parts),
        "change": sum(len({*part.changed} - {*part.adopted}) for part in parts),
        "remove": sum(len(part.removed) for part in parts),
        "adopt": sum(len(part.adopted) for part in parts),
    }
    done = [
        f"{count} to {verb}" if is_plan else f"{count} {verb.removesuffix('e')}ed"
        for verb, count in counts.items()
        if count
    ]
    drift = f", {len(plan.drifted)} of which had drifted" if plan.drifted else ""
    click.echo(f"{', '.join(done)}{drift}; {unchanged} unchanged.".capitalize())


def _remark(target: Target, file: File, plan: Plan) -> None:
    if kept := [f"{noun} {name}".strip() for noun, part in _parts(plan) for name in part.kept]:
        printing.note(f"not in the file, and kept: {shortened(kept, 20)}; --prune removes them.")
    taken = [
        f"{noun} {name}{f' ({source})' if source else ''}".strip()
        for noun, part in _parts(plan)
        for name, source in part.taken.items()
    ]
    if taken:
        printing.note(
            f"made elsewhere, and left alone: {shortened(taken, 20)}; --adopt takes them over."
        )
    for section in plan.sections.values():
        for name, definition in section.applied.items():
            remark = section.section.noun.remark(definition, is_new=name in section.added)
            if remark is not None:
                printing.note(f"{remark}.")
        for name, changes in {**section.changed, **dict.fromkeys(section.removed)}.items():
            news = None if changes is None else {change.field: change.new for change in changes}
            if left := section.section.noun.left_open(section.there[name], news):
                printing.note(f"{section.section.noun.name} {name!r}: {left}.")
    namespace = target.namespace
    if target.has_app and file.namespace not in (None, namespace):
        printing.note(f"the app's schedules are in namespace {namespace!r}, the file's are not.")
    templates = plan.sections.get("templates")
    if (file.definitions or (templates and templates.section.definitions)) and not target.has_app:
        printing.note("tasks and launchers are not checked; with -A APP they would be.")


def _json(file: File, plan: Plan, *, is_applied: bool) -> dict[str, Any]:
    return {
        "file": file.label,
        "namespace": plan.namespace,
        "applied": is_applied,
        "changes": bool(plan),
        **_json_of(plan),
        **{
            noun.section: _json_of(plan.sections.get(noun.section, SectionPlan(FileSection(noun))))
            for noun in nouns()
        },
    }


def _json_of(plan: Plan | SectionPlan) -> dict[str, Any]:
    def changes(name: str) -> dict[str, Any]:
        return {
            change.field: {"old": change.old, "new": change.new}
            | ({"drift": True, "last_sync": change.was} if change.by_hand else {})
            for change in plan.changed.get(name, ())
        }

    return {
        "add": plan.added,
        "change": {name: changes(name) for name in plan.changed if name not in plan.adopted},
        "remove": plan.removed,
        "adopt": {
            name: {"source": source, "change": changes(name)}
            for name, source in plan.adopted.items()
        },
        "kept": plan.kept,
        "taken": plan.taken,
        "unchanged": plan.unchanged,
    }


@click.command("export")
@click.argument("names", nargs=-1)
@option("--format", click.Choice(["yaml", "json"]), "The format.", "form", default="yaml")
@pass_target
def export_command(target: Target, names: tuple[str, ...], form: str) -> None:
    """Write schedules as a file: all except those of the app's code, or those named.

    And all calendars, lanes, templates and webhooks, or what the named schedules name. Secrets are
    left out.
    """
    namespace = target.namespace
    with target.transaction() as connection:
        if names:
            rows = [schedules.get(connection, name, namespace=namespace) for name in names]
        else:
            rows = schedules.listing(connection, namespace=namespace)
        readable = [n for n in nouns() if privileges.may_read(connection, n.section)]
        sections = {noun.section: noun.export(connection, namespace) for noun in readable}
    from_code = [row.name for row in rows if row.source == "code" and not names]
    declared = exports.document(
        [row for row in rows if names or row.source != "code"],
        exports.named_by(rows, sections) if names else sections,
        namespace,
    )
    click.echo(_written(declared, form), nl=False)
    if from_code:
        printing.note(f"made by the app's code, and left out: {shortened(from_code, 20)}.")
    if hidden := [noun.section for noun in nouns() if noun.section not in sections and not names]:
        printing.note(f"left out: {', '.join(hidden)}, which this role of the database can't read.")


def _written(document: dict[str, Any], form: str) -> str:
    if form == "json":
        return exports.as_json(document)
    try:
        from pgbeat.schedules.files import yaml_documents
    except ImportError:
        raise ConfigError(
            "YAML needs PyYAML: `pip install 'pgbeat[yaml]'`, or use --format json"
        ) from None
    return yaml_documents.write(document)
