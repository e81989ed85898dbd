"""Makes the changes of a section, by the functions by which people make them."""

from collections.abc import Iterable

from sqlalchemy import Connection, bindparam, select

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.errors import AlreadyExists, Busy, InvalidInput
from pgbeat.schedules.files.documents import Mistake
from pgbeat.schedules.files.nouns.comparing import SectionPlan


def lock(connection: Connection, namespace: str, plan: SectionPlan) -> None:
    """Locks the rows that a plan changes."""
    table = plan.section.noun.table
    names = [*plan.changed, *plan.removed, *plan.adopted, *plan.noted]
    if names:
        query = select(table.c.name).where(table.c.namespace == namespace, table.c.name.in_(names))
        connection.execute(query.order_by(table.c.name).with_for_update(key_share=True))


def write(unit: UnitOfWork, plan: SectionPlan) -> list[Mistake]:
    """Adds and changes rows; returns the mistakes that only this finds.

    Raises `Busy` if a name was taken just now.
    """
    noun, mistakes = plan.section.noun, []
    for name in dict.fromkeys((*plan.added, *plan.changed)):
        definition = plan.section.definitions[name]
        changes = plan.changed.get(name)
        changed = None if changes is None else {change.field for change in changes}
        try:
            noun.write(unit, name, definition.values, changed)
        except InvalidInput as error:
            for problem in error.problems:
                mistakes.append(definition.mistake(problem.root, problem.message))
        except AlreadyExists:
            raise Busy(f"a {noun.name} {name!r} was added just now; try again") from None
    if noun.is_owned and not mistakes:
        _note(unit, plan, (*plan.added, *plan.changed, *plan.adopted, *plan.noted))
    return mistakes


def remove(unit: UnitOfWork, plan: SectionPlan) -> None:
    """Deletes rows. Raises `InvalidInput` for one that is in use."""
    for name in plan.removed:
        try:
            plan.section.noun.remove(unit, name)
        except InvalidInput as error:
            message = f"{error}; nothing is written; keep it in the file until nothing uses it"
            raise type(error).of("", error.problems[0].code, message) from None


def _note(unit: UnitOfWork, plan: SectionPlan, names: Iterable[str]) -> None:
    """Writes what the file says of rows."""
    section, table = plan.section, plan.section.noun.table
    statement = (
        table.update()
        .where(table.c.namespace == unit.namespace, table.c.name == bindparam("of_name"))
        .values(file_definition=bindparam("definition"))
    )
    batch = [
        {"of_name": name, "definition": section.noun.plain(section.definitions[name].values)}
        for name in dict.fromkeys(names)
    ]
    if batch:
        unit.connection.execute(statement, batch)
