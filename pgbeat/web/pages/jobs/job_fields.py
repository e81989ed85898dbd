"""The fields that forms of schedules, templates and jobs share, and the names they offer."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from pgbeat.database import tables
from pgbeat.jobs.checks.permissions import may_run
from pgbeat.jobs.policy import policies as job_policies
from pgbeat.jobs.policy.policies import JobPolicy
from pgbeat.schedules import launchers
from pgbeat.web.backend import WebBackend
from pgbeat.web.identity import Caller
from pgbeat.web.pages.forms import FormField, FormSection, text, wide

if TYPE_CHECKING:
    from celery import Celery

TEMPLATE = FormField("template", "Template", offer="templates", hint="for what is left empty here")
TASK = wide("task", "Task", offer="tasks")
ARGS = wide("args", "Arguments", "json", 'a JSON list: [1, "a"]')
KWARGS = wide("kwargs", "Keyword arguments", "json", 'a JSON object: {"day": 1}')
QUEUE = FormField("queue", "Queue", hint="empty: as the app routes it")
OPTIONS = wide("options", "Publish options", "json", "Celery's, a JSON object")

PUBLISHING = FormSection("How it is published", (QUEUE, OPTIONS), "queue, options")
ABOUT = FormSection(
    "What it is for",
    (
        wide("description", "Description", "long", "what it is for"),
        wide("labels", "Labels", "json", 'to find it by, a JSON object: {"team": "billing"}'),
        wide("metadata", "Metadata", "json", "anything else to keep with it, a JSON object"),
    ),
    "description, labels, metadata",
)

_LINE = (
    FormField("lane", "Lane", offer="lanes", hint="in whose line it waits; empty: none"),
    FormField("priority", "Priority", "number", "0 to 255, the highest goes first"),
    FormField("requires_approval", "Waits for approval", "flag", open="by default, no"),
    FormField("tags", "Tags", "list", "separated by commas"),
    FormField("resources", "Resources", "json", 'while it runs: {"gpu": 1}'),
)
_AGAIN = (
    FormField("max_attempts", "Attempts", "number", "in all; 1: no retry"),
    FormField("retry_base", "First retry after", "length", "such as 1 min; then twice as long"),
    FormField("retry_cap", "But no later than", "length", "such as 1 h"),
)
_IN_TIME = (
    FormField("must_start_within", "Late if not started within", "length", "such as 10 min"),
    FormField("must_end_within", "Late if not ended within", "length", "such as 1 h"),
)
_ONCE = (
    FormField(
        "unique", "Only one with these arguments", "flag", "unfinished", open="by default, no"
    ),
    FormField("unique_key", "Only one with the key", hint="unfinished"),
    FormField("unique_for", "Nor another within", "length", "such as 1 h, finished or not"),
)


def sections(prefix: str = "") -> tuple[FormSection, ...]:
    """Returns the fields of a job policy, without its template. The prefix is for their names."""
    return tuple(
        FormSection(title, tuple(f._replace(name=prefix + f.name) for f in fields), hint)
        for title, hint, fields in (
            ("Where it waits", "lane, priority, approval", _LINE),
            ("If it fails", "attempts, and when", _AGAIN),
            ("In time", "or it is late", _IN_TIME),
            ("Only one", "not beside an equal job", _ONCE),
        )
    )


def written(job: dict[str, Any], prefix: str) -> dict[str, str]:
    """Returns a policy as the texts of the fields."""
    policy, _ = job_policies.read(job)
    kinds = {field.name: field.kind for section in sections() for field in section.fields}
    kinds["template"] = "text"
    return {prefix + name: text(kinds[name], getattr(policy, name)) for name in JobPolicy._fields}


def merged(job: dict[str, Any], changed: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Returns a policy with its changes, which are taken out of `changed`."""
    names = [name for name in changed if name.startswith(prefix)]
    policy = job | {name.removeprefix(prefix): changed.pop(name) for name in names}
    return {name: value for name, value in policy.items() if value is not None}


#: The most names that are offered for a field.
_MOST = 300
_TABLES = {"lanes": tables.lanes, "templates": tables.templates, "calendars": tables.calendars}


def offers(
    connection: Connection,
    backend: WebBackend,
    fields: Iterable[FormField],
    caller: Caller | None = None,
) -> dict[str, list[str]]:
    """Returns the names to offer for the fields: tasks, launchers, lanes, templates, calendars.

    With a `caller`, only the tasks that they may run are offered.
    """
    names: dict[str, list[str]] = {}
    for key in dict.fromkeys(field.offer for field in fields if field.offer):
        if key == "tasks":
            names[key] = tasks(backend.celery, caller)
        elif key == "launchers":
            names[key] = launchers.registered()[:_MOST]
        else:
            name, of = _TABLES[key].c.name, _TABLES[key].c.namespace
            query = select(name).where(of == backend.namespace).order_by(name).limit(_MOST)
            names[key] = list(connection.scalars(query))
    return names


def tasks(app: "Celery", caller: Caller | None = None) -> list[str]:
    """Returns the names of the app's own tasks; with a `caller`, only those that they may run."""
    return sorted(
        name
        for name in app.tasks
        if not name.startswith(("celery.", "pgbeat.")) and (caller is None or may_run(caller, name))
    )[:_MOST]
