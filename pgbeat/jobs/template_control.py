"""Control of templates: what people do with them, a function for each verb, in a unit of work."""

from typing import Any, NamedTuple

from pgbeat.broker.publishing.publisher import check_options
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.errors import AlreadyExists
from pgbeat.jobs import templates
from pgbeat.jobs.prepare import require_call
from pgbeat.jobs.task_checks import check_task
from pgbeat.jobs.templates import Template


class SavedTemplate(NamedTuple):
    """A template as it is now, and as it was, if it was there."""

    template: Template
    before: Template | None


def put(unit: UnitOfWork, name: str, *, only_new: bool = False, **values: Any) -> SavedTemplate:
    """Creates a template, or gives the one of that name all of this instead of what it had. The
    task and the options are checked against the app, where there is one.

    Raises `InvalidJob`, `InvalidSchedule`, `UnknownTask`, `Forbidden`; and `AlreadyExists` for one
    that is there if `only_new`.
    """
    app, queue, options = unit.app, values.get("queue"), values.get("options") or {}
    where = {} if queue is None else {"queue": queue}
    check_options({**where, **options}, None if app is None else app.conf)
    require_call(unit.actor, values["task"], options)
    if app is not None:
        check_task(app, values["task"])
    before = templates.load(unit.connection, [name], namespace=unit.namespace).get(name)
    if before is not None and only_new:
        raise AlreadyExists(f"there is a template {name!r} already; PUT changes it")
    row = templates.put(
        unit.connection, name, namespace=unit.namespace, created_by=unit.actor.name, **values
    )
    unit.record("create" if before is None else "update", before, row)
    return SavedTemplate(row, before)


def remove(unit: UnitOfWork, name: str) -> None:
    """Deletes a template that no schedule names. Raises `NotFound` and `InvalidJob`."""
    row = templates.get(unit.connection, name, namespace=unit.namespace, for_update=True)
    templates.remove(unit.connection, name, namespace=unit.namespace)
    unit.record("delete", row, None)
