"""Compares a section of a file with the rows of its noun."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from pgbeat.schedules.files.definitions import Definition
from pgbeat.schedules.files.documents import Mistake
from pgbeat.schedules.files.fields import FieldChange, same
from pgbeat.schedules.files.nouns.noun import OTHER, FileNoun, FileSection, Plain, Stored


@dataclass
class SectionPlan:
    """The changes to the rows of a noun, by name. Its words mean the same as those of a `Plan`."""

    section: FileSection
    added: dict[str, Plain] = field(default_factory=dict)
    changed: dict[str, list[FieldChange]] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    adopted: dict[str, str | None] = field(default_factory=dict)
    taken: dict[str, str | None] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)
    unchanged: int = 0
    #: All rows that there are before, by name.
    there: Mapping[str, Stored] = field(default_factory=dict, compare=False)
    mistakes: list[Mistake] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Returns whether there is anything to do."""
        return bool(self.added or self.changed or self.removed or self.adopted)

    @property
    def applied(self) -> dict[str, Definition]:
        """Returns the definitions that are not left alone."""
        wanted = self.section.definitions
        return {name: wanted[name] for name in wanted if name not in self.taken}

    @property
    def names(self) -> set[str]:
        """Returns the names of the rows that there will be, and of those with mistakes."""
        return {*self.there, *self.section.definitions, *self.section.unfit} - {*self.removed}


def compare(
    connection: Connection, section: FileSection, namespace: str, *, prune: bool, adopt: bool
) -> SectionPlan:
    """Returns the changes of a section; writes nothing."""
    noun, wanted = section.noun, section.definitions
    rows = noun.rows(connection, namespace)
    plan = SectionPlan(section, there=rows)
    for name, stored in rows.items():
        is_files = stored.base is not None
        if name not in wanted:
            if is_files and name not in section.unfit:
                (plan.removed if prune else plan.kept).append(name)
        elif noun.is_owned and not is_files and not adopt:
            plan.taken[name] = noun.made_by(stored)
        else:
            if noun.is_owned and not is_files:
                plan.adopted[name] = noun.made_by(stored)
            _compare_row(connection, noun, plan, wanted[name], stored)
    for name, definition in wanted.items():
        if name not in rows:
            plan.added[name] = noun.plain(definition.values)
    for name, definition in plan.applied.items():
        refusals = noun.refusals(definition, rows.get(name))
        plan.mistakes += [definition.mistake(*refusal) for refusal in refusals]
    return plan


def _compare_row(
    connection: Connection,
    noun: FileNoun,
    plan: SectionPlan,
    definition: Definition,
    stored: Stored,
) -> None:
    name, wanted = definition.name, noun.plain(definition.values)
    have = noun.plain(noun.compared(connection, stored, definition.values))
    changes = list(_changes(noun, have, wanted, stored.base))
    if changes:
        plan.changed[name] = changes
    elif name not in plan.adopted:
        plan.unchanged += 1
        if noun.is_owned and not same(stored.base, wanted):
            plan.noted.append(name)


def _changes(
    noun: FileNoun, have: Plain, wanted: Plain, base: Plain | None
) -> Iterator[FieldChange]:
    for name in noun.fields or {**have, **wanted}:
        default = noun.plain_default(name)
        old, new = have.get(name, default), wanted.get(name, default)
        if not same(old, new):
            was: Any = old if base is None or old == OTHER else base.get(name, default)
            yield FieldChange(name, old, new, not same(was, old), was)
