"""The fields of a job policy, as forms of schedules, templates and jobs have them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from pgbeat.database import tables
from pgbeat.jobs import policies as job_policies
from pgbeat.jobs.permissions import may_run
from pgbeat.jobs.policies import JobPolicy
from pgbeat.schedules import launchers
from pgbeat.web.backend import Backend
from pgbeat.web.identity import Caller
from pgbeat.web.pages.forms import Field, Section, text

if TYPE_CHECKING:
    from celery import Celery

TEMPLATE = Field(
    "template", "Template", offer="templates", hint="what it says goes where you don't"
)
TASK = Field("task", "Task", offer="tasks", is_wide=True)
ARGS = Field("args", "Arguments", "json", 'a JSON list: [1, "a"]', is_wide=True)
KWARGS = Field("kwargs", "Keyword arguments", "json", 'a JSON object: {"day": 1}', is_wide=True)
QUEUE = Field("queue", "Queue", hint="empty: as the app routes it")
OPTIONS = Field("options", "Publish options", "json", "Celery's, a JSON object", is_wide=True)

ABOUT = (
    Field("description", "Description", "long", "what it is for", is_wide=True),
    Field("labels", "Labels", "json", 'to find it by, a JSON object: {"team": "billing"}',
          is_wide=True),
    Field("metadata", "Metadata", "json", "anything else to keep with it, a JSON object",
          is_wide=True),
)  # fmt: skip

_LINE = (
    Field("lane", "Lane", offer="lanes", hint="that it waits in; empty: none"),
    Field("priority", "Priority", "number", "0 to 255, the highest goes first"),
    Field("requires_approval", "Waits for approval", "flag", open="by default, no"),
    Field("tags", "Tags", "list", "with commas between them"),
    Field("resources", "Resources", "json", 'while it runs: {"gpu": 1}'),
)
_AGAIN = (
    Field("max_attempts", "Attempts", "number", "in all; 1: no retry"),
    Field("retry_base", "First retry after", "length", "such as 1 min; then twice as long each"),
    Field("retry_cap", "But no later than", "length", "such as 1 h"),
)
_ONCE = (
    Field(
        "unique",
        "Only one with these arguments",
        "flag",
        "that has not ended",
        open="by default, no",
    ),
    Field("unique_key", "Only one with the key", hint="that has not ended"),
    Field("unique_for", "Nor another within", "length", "of its making, such as 1 h"),
)


def sections(prefix: str = "") -> tuple[Section, ...]:
    """The fields of a policy, but its template, their names beginning so."""
    return tuple(
        Section(title, tuple(each._replace(name=prefix + each.name) for each in fields), hint)
        for title, hint, fields in (
            ("Where it waits", "lane, priority, approval", _LINE),
            ("If it fails", "attempts, and when", _AGAIN),
            ("Only one", "not beside another like it", _ONCE),
        )
    )


def written(job: dict[str, Any], prefix: str) -> dict[str, str]:
    """A policy as it stands in those fields."""
    policy, _ = job_policies.read(job)
    kinds = {each.name: each.kind for section in sections() for each in section.fields}
    kinds["template"] = "text"
    return {prefix + name: text(kinds[name], getattr(policy, name)) for name in JobPolicy._fields}


def merged(job: dict[str, Any], changed: dict[str, Any], prefix: str) -> dict[str, Any]:
    """A policy with what of it was changed; takes that out of `changed`."""
    names = [name for name in changed if name.startswith(prefix)]
    found = job | {name.removeprefix(prefix): changed.pop(name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


#: Names that are offered for a field, at most.
_MOST = 300


_TABLES = {"lanes": tables.lanes, "templates": tables.templates, "calendars": tables.calendars}


def offers(
    connection: Connection, backend: Backend, fields: Iterable[Field], caller: Caller | None = None
) -> dict[str, list[str]]:
    """Names that these fields may have: of tasks, launchers, lanes, templates, calendars. Of tasks,
    those that the caller may have run."""
    found: dict[str, list[str]] = {}
    for key in dict.fromkeys(each.offer for each in fields if each.offer):
        if key == "tasks":
            found[key] = [
                name for name in tasks(backend.celery) if caller is None or may_run(caller, name)
            ]
        elif key == "launchers":
            found[key] = launchers.registered()[:_MOST]
        else:
            name, of = _TABLES[key].c.name, _TABLES[key].c.namespace
            query = select(name).where(of == backend.namespace).order_by(name).limit(_MOST)
            found[key] = list(connection.scalars(query))
    return found


def tasks(app: "Celery") -> list[str]:
    """The app's own tasks."""
    return sorted(name for name in app.tasks if not name.startswith(("celery.", "pgbeat.")))[:_MOST]
