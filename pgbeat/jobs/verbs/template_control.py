"""Changes templates for people, with a function for each verb."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert

from pgbeat.access.actors import Actor
from pgbeat.broker.publishing.json_values import unreadable
from pgbeat.broker.publishing.publisher import check_options
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import settings_of
from pgbeat.database.named_rows import missing
from pgbeat.database.tables import schedules
from pgbeat.database.tables import templates as table
from pgbeat.errors import AlreadyExists, InvalidJob, Problem, Problems
from pgbeat.jobs.checks import sql_jobs
from pgbeat.jobs.checks.task_checks import check_task
from pgbeat.jobs.checks.user_limits import require_call
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.policy import policies as job_policies
from pgbeat.jobs.policy import templates
from pgbeat.jobs.policy.templates import Template
from pgbeat.jobs.preparing import placeholders
from pgbeat.jobs.preparing.details import description_problem
from pgbeat.names import name_problem
from pgbeat.storable import storable_json

if TYPE_CHECKING:
    from celery import Celery


class SavedTemplate(NamedTuple):
    """A template, and as it was before, if it existed."""

    template: Template
    before: Template | None


def put(
    unit: UnitOfWork,
    name: str,
    *,
    task: Any,
    args: Any = (),
    kwargs: Any = None,
    options: Any = None,
    queue: str | None = None,
    job_policy: Any = None,
    description: str | None = None,
    only_new: bool = False,
) -> SavedTemplate:
    """Creates a template, or replaces all its values.

    Schedules that have their task from it get the new one. The task and the options are checked
    against the app if the unit has it.

    Raises `InvalidJob`, `InvalidSchedule`, `UnknownTask`, `Forbidden`, and `AlreadyExists` if
    `only_new`.
    """
    values = {
        "task": task,
        "args": list(args) if isinstance(args, tuple) else args,
        "kwargs": {} if kwargs is None else kwargs,
        "options": {} if options is None else options,
        "queue": queue,
        "job_policy": {} if job_policy is None else job_policy,
        "description": description,
    }
    _check(unit, name, values)
    # Of two that change its task, the second sees that of the first in schedules.
    rows = templates.load(unit.connection, [name], namespace=unit.namespace, for_update=True)
    before = rows.get(name)
    if before is not None and only_new:
        raise AlreadyExists(f"there is a template {name!r} already; PUT changes it")
    if before is not None and before.task != task:
        _give_schedules(unit, before, task)
    statement = insert(table).values(
        namespace=unit.namespace, name=name, created_by=unit.actor.name, **values
    )
    statement = statement.on_conflict_do_update(
        index_elements=["namespace", "name"], set_={**values, "updated_at": func.now()}
    )
    row = Template(*unit.connection.execute(statement.returning(*templates.COLUMNS)).one())
    unit.record("create" if before is None else "update", before, row)
    return SavedTemplate(row, before)


def _give_schedules(unit: UnitOfWork, template: Template, task: str) -> None:
    """Gives a task to the schedules that have the template's, in the order of their ids.

    Other writers of many rows lock them in that order, too.
    """
    naming = select(schedules.c.id).where(
        schedules.c.namespace == unit.namespace,
        template.name == templates.NAMED,
        schedules.c.task == template.task,
    )
    ids = unit.connection.scalars(naming.order_by(schedules.c.id).with_for_update()).all()
    unit.connection.execute(update(schedules).where(schedules.c.id.in_(ids)).values(task=task))


def _check(unit: UnitOfWork, name: str, values: Mapping[str, Any]) -> None:
    unfit = name_problem(name)
    wrong = Problems([Problem("name", "malformed", unfit)] if unfit else [])
    wrong += [*problems(values), *_unknown_lane(unit, values["job_policy"])]
    wrong.raise_if_any(InvalidJob, subject=f"template {name!r}")
    check_call(unit.app, values, unit.actor)


def check_call(app: "Celery | None", values: Mapping[str, Any], actor: Actor | None = None) -> None:
    """Checks a template's task, publish options and role for SQL against the app, if there is one.

    Raises `InvalidSchedule` or `UnknownTask`, and `Forbidden` if the actor may not run the task:
    before that, since not everybody may know which tasks exist.
    """
    where = {} if values["queue"] is None else {"queue": values["queue"]}
    check_options({**where, **values["options"]}, None if app is None else app.conf)
    if actor is not None:
        require_call(actor, values["task"], values["options"])
    if app is not None:
        check_task(app, values["task"])
        if values["task"] == sql_jobs.TASK:
            sql_jobs.check_part(settings_of(app), values["args"], values["kwargs"])


def remove(unit: UnitOfWork, name: str) -> None:
    """Deletes a template that no schedule names. Jobs made from it stay as they are.

    Raises `NotFound`, and `InvalidJob` if schedules name it.
    """
    row = templates.lock_unused(unit.connection, name, InvalidJob, namespace=unit.namespace)
    unit.connection.execute(table.delete().where(templates.is_template(name, unit.namespace)))
    unit.record("delete", row, None)


# The types of JSON values, and their names.
_TYPES: dict[str, tuple[type, str]] = {
    "args": (list, "array"),
    "kwargs": (dict, "object"),
    "options": (dict, "object"),
    "job_policy": (dict, "object"),
}


def problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Yields what is wrong with a template's values, whatever the app and the database have."""
    task, options = values["task"], values["options"]
    if not isinstance(task, str) or not task.strip():
        message = f"task must name a registered task, got {task!r}"
        yield Problem("task", "required", message)
    elif len(task) > 255 or task.strip(" ") != task or not task.isprintable():
        message = f"task must be a name of 1 to 255 characters, got {task!r}"
        yield Problem("task", "malformed", message)
    for key, (kind, noun) in _TYPES.items():
        if not isinstance(values[key], kind):
            message = f"{key} must be a JSON {noun}, got {values[key]!r}"
            yield Problem(key, "malformed", message)
            continue
        try:
            storable_json(values[key])
        except (TypeError, ValueError, RecursionError) as error:
            yield Problem(key, "malformed", f"{key} can't be kept as JSON: {error}")
    for key in ("args", "kwargs"):
        yield from placeholders.problems(values[key], key)
        if (why := unreadable(values[key])) is not None:
            yield Problem(key, "malformed", f"{key}: {why}")
    if (why := description_problem(values["description"])) is not None:
        yield Problem("description", "malformed", f"description {why}")
    for key in ("eta", "countdown"):
        if isinstance(options, Mapping) and key in options:
            message = f"options can't have {key!r}; each job has its own time"
            yield Problem(f"options.{key}", "conflict", message)
    if isinstance(values["job_policy"], Mapping):
        policy, unfit = job_policies.read(values["job_policy"])
        for problem in unfit:
            yield problem._replace(message=f"job_policy: {problem.message}").within("job_policy")
        if policy.template is not None:
            message = "job_policy can't name a template: a template is not made from another"
            yield Problem("job_policy.template", "conflict", message)


def _unknown_lane(unit: UnitOfWork, job_policy: Any) -> Iterator[Problem]:
    if not isinstance(job_policy, Mapping):
        return
    lane = job_policies.read(job_policy)[0].lane
    if lane is not None and not lanes.load(unit.connection, [lane], namespace=unit.namespace):
        message = str(missing(unit.connection, "lane", lane, namespace=unit.namespace))
        yield Problem("job_policy.lane", "unknown", message)
