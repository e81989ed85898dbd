"""The OpenAPI document: what FastAPI makes of the endpoints, put right where it can't know."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from pgbeat.web.problems import MEDIA_TYPE

#: What the tags are about, in the order of the documentation.
TAGS = [
    {"name": "scheduled jobs", "description": "What makes jobs by a timetable."},
    {"name": "calendars", "description": "What schedules leave out: days, holidays, hours."},
    {"name": "jobs", "description": "Units of work: made, watched, steered."},
    {"name": "groups", "description": "Jobs given together, at once or one after the other."},
    {"name": "templates", "description": "What jobs are made from."},
    {"name": "lanes", "description": "Limits on what runs at once, with waiting lines."},
    {"name": "direct execution", "description": "A task here and now, in a lane's next slot."},
    {"name": "queues", "description": "The broker's queues."},
    {"name": "dead letters", "description": "Messages that nobody could handle."},
    {"name": "webhooks", "description": "Who is told of what happens."},
    {"name": "scheduler", "description": "Beats, and figures of all jobs."},
    {"name": "health", "description": "For probes; they need no token."},
    {"name": "audit", "description": "Who changed what."},
]
_READING = {"get", "head"}
#: What only a request with a body, or a change, is answered.
_OF_CHANGES = {"400", "409", "413"}


def install(app: FastAPI) -> None:
    """Has the app describe itself so."""

    def document() -> dict[str, Any]:
        if not app.openapi_schema:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    made = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
        servers=app.servers or None,
    )
    for methods in made["paths"].values():
        for method, operation in methods.items():
            _correct(method, operation)
    return made


def _correct(method: str, operation: dict[str, Any]) -> None:
    responses = operation.get("responses", {})
    is_open = not operation.get("security")
    for status in list(responses):
        if not status.isdigit() or int(status) < 400:
            continue
        is_of_changes = method in _READING and status in _OF_CHANGES
        if is_of_changes or (is_open and status in {"401", "403", "404", "422"}):
            del responses[status]
            continue
        content = responses[status].get("content", {})
        if "application/json" in content:
            content[MEDIA_TYPE] = content.pop("application/json")
