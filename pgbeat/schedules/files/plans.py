"""Plans: the changes that a file makes to the rows."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from sqlalchemy import ARRAY, Connection, Row, Text, bindparam, func, or_, select

from pgbeat.database.named_rows import not_found
from pgbeat.database.tables import calendars, lanes, schedules, templates
from pgbeat.schedules import upstreams
from pgbeat.schedules.files.definitions import Definition, circles, circular, has_template
from pgbeat.schedules.files.documents import Mistake
from pgbeat.schedules.files.fields import FIELDS, SWITCHES, FieldChange, plain, same
from pgbeat.schedules.files.job_policies import canonical
from pgbeat.schedules.files.nouns.comparing import SectionPlan, compare
from pgbeat.schedules.files.reading import File

#: The reason of schedules that a file disables.
BY_FILE = "disabled by its file"


@dataclass
class Plan:
    """The changes to the schedules of a namespace, by name."""

    namespace: str
    #: Definitions as a file writes them.
    added: dict[str, dict[str, Any]] = field(default_factory=dict)
    changed: dict[str, list[FieldChange]] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    #: Schedules made elsewhere that become the file's, with their source.
    adopted: dict[str, str] = field(default_factory=dict)
    #: Schedules made elsewhere that stay as they are, with their source.
    taken: dict[str, str] = field(default_factory=dict)
    #: Those from a file that are not in this one, and are left alone.
    kept: list[str] = field(default_factory=list)
    unchanged: int = 0
    #: Those of the other sections of the file, in its order.
    sections: dict[str, SectionPlan] = field(default_factory=dict)
    #: The rows that were found.
    rows: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    #: The schedules that each of the namespace comes after; empty if none of the file's does.
    after: dict[str, list[str]] = field(default_factory=dict, compare=False, repr=False)
    #: Those that stay as they are, but whose `file_definition` changes.
    noted: list[str] = field(default_factory=list, compare=False, repr=False)
    #: Names of things that won't exist, and circles of `after`.
    mistakes: list[Mistake] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Returns whether there is anything to do."""
        return bool(
            self.added
            or self.changed
            or self.removed
            or self.adopted
            or any(self.sections.values())
        )

    @property
    def touched(self) -> tuple[str, ...]:
        """Returns the names of the schedules that are written."""
        return (*self.added, *self.changed, *self.adopted, *self.removed, *self.noted)

    @property
    def is_noted(self) -> bool:
        """Returns whether something stays as it is, but not what the file says of it."""
        return bool(self.noted or any(plan.noted for plan in self.sections.values()))

    @property
    def drifted(self) -> list[str]:
        """Returns what was edited by hand, and the file resets."""
        everything = [self.changed, *(plan.changed for plan in self.sections.values())]
        named = chain.from_iterable(changed.items() for changed in everything)
        return [name for name, changes in named if any(c.by_hand for c in changes)]


_COLUMNS = [schedules.c[name] for name in FIELDS if name != "paused"]
_SELECT = select(
    schedules.c.id,
    schedules.c.name,
    schedules.c.source,
    schedules.c.disabled_reason,
    schedules.c.file_definition,
    schedules.c.paused_at.is_not(None).label("paused"),
    *_COLUMNS,
)
_FOUND = _SELECT.where(
    schedules.c.namespace == bindparam("namespace"),
    or_(
        schedules.c.source == "file",
        schedules.c.name == func.any(bindparam("names", type_=ARRAY(Text))),
    ),
).order_by(schedules.c.name)


def make(
    connection: Connection, file: File, namespace: str, *, prune: bool = False, adopt: bool = False
) -> Plan:
    """Returns the file's changes; writes nothing.

    `prune` removes schedules of an earlier file that are not in this one; `adopt` takes over those
    that were made elsewhere. The plan's mistakes are unknown calendars, lanes, templates and
    schedules to come after.
    """
    plan = Plan(namespace)
    for name, section in file.sections.items():
        plan.sections[name] = compare(connection, section, namespace, prune=prune, adopt=adopt)
    if file.has_schedules:
        _plan_schedules(connection, file.definitions, plan, prune=prune, adopt=adopt)
    plan.mistakes = [m for section in plan.sections.values() for m in section.mistakes]
    plan.mistakes += _wrong_names(connection, file, plan)
    return plan


def _plan_schedules(
    connection: Connection,
    wanted: Mapping[str, Definition],
    plan: Plan,
    *,
    prune: bool,
    adopt: bool,
) -> None:
    rows = connection.execute(_FOUND, {"namespace": plan.namespace, "names": list(wanted)})
    plan.rows = {row.name: row for row in rows}
    for name, row in plan.rows.items():
        if name not in wanted:
            (plan.removed if prune else plan.kept).append(name)
        elif row.source != "file" and not adopt:
            plan.taken[name] = row.source
        else:
            if row.source != "file":
                plan.adopted[name] = row.source
            changes = list(_changes(row, wanted[name]))
            if changes:
                plan.changed[name] = changes
            elif name not in plan.adopted:
                plan.unchanged += 1
                if not same(row.file_definition, plain(wanted[name].values)):
                    plan.noted.append(name)
    plan.added.update((n, plain(d.values)) for n, d in wanted.items() if n not in plan.rows)


def _changes(row: Row[Any], definition: Definition) -> Iterator[FieldChange]:
    base = row.file_definition if row.source == "file" else None
    for name, described in FIELDS.items():
        have, want = getattr(row, name), definition.values[name]
        if name == "job_policy":
            have = canonical(have)
        if name == "task" and _is_templates(definition, base):
            continue
        if same(have, want) or (name in SWITCHES and not _switches(row, name, want, base)):
            continue
        old, new = described.plain(have), described.plain(want)
        was = old if base is None else base.get(name, described.plain(described.default))
        yield FieldChange(name, old, new, not same(was, old), was)


def _is_templates(definition: Definition, base: Mapping[str, Any] | None) -> bool:
    """Returns whether the task is the template's, which the database fills in.

    That is not so if the file before this one named a task.
    """
    is_open = definition.values["task"] is None and has_template(definition.values)
    return is_open and (base or {}).get("task") is None


def _switches(row: Row[Any], name: str, want: bool, base: Mapping[str, Any] | None) -> bool:
    """Returns whether the file switches a schedule off or on that is in the other state.

    The file can always switch it off. Between two syncs, people and failures may switch it off
    too, and it stays so: the file switches on only what a file had switched off.
    """
    is_off = not want if name == "enabled" else want
    if is_off:
        return True
    was_off = (base or {}).get(name) is (name == "paused")
    return was_off and (name == "paused" or row.disabled_reason == BY_FILE)


_AFTER = select(schedules.c.name, schedules.c.after).where(
    schedules.c.namespace == bindparam("namespace")
)


def _wrong_names(connection: Connection, file: File, plan: Plan) -> list[Mistake]:
    """Returns mistakes: names of things that won't exist, and circles of `after`."""
    mistakes: list[Mistake] = []
    applied = {n: d for n, d in file.definitions.items() if n not in plan.taken}
    if any(d.values["calendar"] is not None for d in applied.values()):
        mistakes.extend(_missing("calendar", applied, _names(connection, plan, "calendar")))
    if any(d.values["after"] is not None for d in applied.values()):
        removed = set(plan.removed)
        rows = connection.execute(_AFTER, {"namespace": plan.namespace})
        plan.after = {r.name: upstreams(r.after) for r in rows if r.name not in removed}
        plan.after |= {name: upstreams(d.values["after"]) for name, d in applied.items()}
        mistakes.extend(_missing("after", applied, {*plan.after, *file.unfit}))
        closed = [circle for circle in circles(plan.after) if applied.keys() & {*circle}]
        mistakes.extend(circular(applied, circle) for circle in closed)
    made = plan.sections["templates"].applied if "templates" in plan.sections else {}
    for key in ("lane", "template"):
        both = (*applied.values(), *made.values())
        named = [d for d in both if d.values["job_policy"].get(key) is not None]
        there = _names(connection, plan, key) if named else ()
        for definition in named:
            name = definition.values["job_policy"][key]
            if name not in there:
                message = f"job_policy: {key}: {not_found(key, name, there)}"
                mistakes.append(definition.mistake("job_policy", message))
    return mistakes


_TABLES = {"calendar": calendars, "lane": lanes, "template": templates}


def _names(connection: Connection, plan: Plan, noun: str) -> Collection[str]:
    """Returns the names of things that will exist."""
    section = plan.sections.get(f"{noun}s")
    if section is not None:
        return section.names
    table = _TABLES[noun]
    query = select(table.c.name).where(table.c.namespace == plan.namespace)
    return list(connection.scalars(query))


def _missing(
    field: str, definitions: Mapping[str, Definition], there: Collection[str]
) -> Iterator[Mistake]:
    noun = "schedule" if field == "after" else field
    for definition in definitions.values():
        for name in upstreams(definition.values[field]):
            if name in there:
                continue
            yield definition.mistake(field, f"{field}: {not_found(noun, name, there)}")
