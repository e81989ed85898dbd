"""Templates: named tasks with arguments and a job policy, that schedules and people make jobs from.

A job takes a copy: what becomes of the template later doesn't change it.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from pgbeat.database.tables import schedules, templates
from pgbeat.errors import InvalidJob, NotFound, Problem, Problems
from pgbeat.jobs import placeholders
from pgbeat.jobs import policies as job_policies
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.policies import JobPolicy
from pgbeat.names import name_problem
from pgbeat.suggest import did_you_mean


class Template(NamedTuple):
    """A row of `pgbeat.templates`."""

    namespace: str
    name: str
    description: str | None
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    #: Celery's publish options.
    options: dict[str, Any]
    queue: str | None
    #: Its job policy, as JSON.
    job_policy: dict[str, Any]
    created_by: str | None
    created_at: datetime
    updated_at: datetime

    @property
    def policy(self) -> JobPolicy:
        """How its jobs are made. Raises `InvalidJob`."""
        return job_policies.parse(self.job_policy)

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of it."""
        return "template", self.name, {name: getattr(self, name) for name in _AUDITED}


_AUDITED = ("description", "task", "args", "kwargs", "options", "queue", "job_policy", "created_by")
_COLUMNS = [templates.c[name] for name in Template._fields]
#: The template that a schedule names.
_named = schedules.c.job_policy["template"].astext


def load(connection: Connection, names: Iterable[str], *, namespace: str) -> dict[str, Template]:
    """The templates of these names that there are."""
    wanted = list(names)
    if not wanted:
        return {}
    query = select(*_COLUMNS).where(
        templates.c.namespace == namespace, templates.c.name.in_(wanted)
    )
    return {row.name: Template(*row) for row in connection.execute(query)}


def _is(name: str, namespace: str) -> ColumnElement[bool]:
    return (templates.c.name == name) & (templates.c.namespace == namespace)


def get(connection: Connection, name: str, *, namespace: str, for_update: bool = False) -> Template:
    """The template of that name. Raises `NotFound`, which names the nearest there is."""
    query = select(*_COLUMNS).where(_is(name, namespace))
    row = connection.execute(query.with_for_update() if for_update else query).one_or_none()
    if row is None:
        hint = did_you_mean(name, [row.name for row in listing(connection, namespace=namespace)])
        raise NotFound(
            f"there is no template {name!r}" + (f"; {hint}" if hint else ""), field="template"
        )
    return Template(*row)


def listing(connection: Connection, *, namespace: str) -> list[Template]:
    """All templates, by name."""
    query = select(*_COLUMNS).where(templates.c.namespace == namespace).order_by(templates.c.name)
    return [Template(*row) for row in connection.execute(query)]


def users(connection: Connection, *, namespace: str) -> dict[str, list[str]]:
    """Names of the schedules that name each template; those that none names are left out."""
    query = select(_named, schedules.c.name).where(
        schedules.c.namespace == namespace, _named.is_not(None)
    )
    found: dict[str, list[str]] = {}
    for template, schedule in connection.execute(query.order_by(schedules.c.name)):
        found.setdefault(template, []).append(schedule)
    return found


def put(
    connection: Connection,
    name: str,
    *,
    namespace: str,
    task: Any,
    args: Any = (),
    kwargs: Any = None,
    options: Any = None,
    queue: str | None = None,
    job_policy: Any = None,
    description: str | None = None,
    created_by: str | None = None,
) -> Template:
    """Makes a template, or gives the one of that name all of this instead of what it had. Schedules
    that name it, and have their task from it, go on with the new one.

    `job_policy` is JSON. Raises `InvalidJob`, which lists every mistake.
    """
    values = {
        "task": task, "args": list(args) if isinstance(args, tuple) else args,
        "kwargs": {} if kwargs is None else kwargs, "options": {} if options is None else options,
        "queue": queue, "job_policy": {} if job_policy is None else job_policy,
        "description": description,
    }  # fmt: skip
    problems = Problems(_problems(connection, values, namespace))
    unfit = name_problem(name)
    if unfit:
        problems.insert(0, Problem("name", "malformed", unfit))
    problems.raise_if_any(InvalidJob, subject=f"template {name!r}")
    before = load(connection, [name], namespace=namespace).get(name)
    if before is not None and before.task != task:
        connection.execute(
            update(schedules)
            .where(schedules.c.namespace == namespace, _named == name)
            .where(schedules.c.task == before.task)
            .values(task=task)
        )
    statement = insert(templates).values(
        namespace=namespace, name=name, created_by=created_by, **values
    )
    statement = statement.on_conflict_do_update(
        index_elements=["namespace", "name"], set_={**values, "updated_at": func.now()}
    )
    return Template(*connection.execute(statement.returning(*_COLUMNS)).one())


def remove(connection: Connection, name: str, *, namespace: str) -> None:
    """Deletes a template. Jobs made from it go on as they are. Raises `NotFound`, and `InvalidJob`
    while schedules name it."""
    get(connection, name, namespace=namespace, for_update=True)
    names = users(connection, namespace=namespace).get(name)
    if names:
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise InvalidJob.of(
            "",
            "in_use",
            f"template {name!r} is used by {', '.join(map(repr, names[:5]))}{more}; "
            "give them another one, or none, first",
        )
    connection.execute(delete(templates).where(_is(name, namespace)))


# -- what is wrong with it


def _problems(
    connection: Connection, values: Mapping[str, Any], namespace: str
) -> Iterable[Problem]:
    task = values["task"]
    if not isinstance(task, str) or not task.strip():
        said = f"task is {task!r}; it must name a registered task"
        yield Problem("task", "required", said)
    elif len(task) > 255 or task.strip(" ") != task or not task.isprintable():
        yield Problem("task", "malformed", f"task {task!r} is no name of 1 to 255 characters")
    for key, kind, example in _SHAPES:
        if not isinstance(values[key], kind):
            said = f"{key} is {values[key]!r}; it must be {example}"
            yield Problem(key, "malformed", said)
        else:
            try:
                json.dumps(values[key], allow_nan=False)
            except (TypeError, ValueError) as error:
                yield Problem(key, "malformed", f"{key} is not JSON: {error}")
    for key in ("args", "kwargs"):
        yield from placeholders.problems(values[key], key)
    for key in ("eta", "countdown"):
        if isinstance(values["options"], Mapping) and key in values["options"]:
            said = f"options has {key!r}; who makes a job of it says when"
            yield Problem(f"options.{key}", "conflict", said)
    if isinstance(values["job_policy"], Mapping):
        policy, unfit = job_policies.read(values["job_policy"])
        for each in unfit:
            yield each._replace(message=f"job_policy: {each.message}").within("job_policy")
        if policy.template is not None:
            said = "job_policy names a template; a template is not made from another"
            yield Problem("job_policy.template", "conflict", said)
        if policy.lane is not None and not lanes.load(
            connection, [policy.lane], namespace=namespace
        ):
            said = lanes.unknown(policy.lane)
            yield Problem("job_policy.lane", "unknown", said)


_SHAPES: list[tuple[str, type, str]] = [
    ("args", list, "a JSON array"),
    ("kwargs", dict, "a JSON object"),
    ("options", dict, "a JSON object"),
    ("job_policy", dict, "a JSON object"),
]
