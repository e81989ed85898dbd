"""Corrects the OpenAPI document that FastAPI makes of the endpoints."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from pgbeat.web.problems import MEDIA_TYPE

#: The tags, in the order of the documentation.
TAGS = [
    {"name": "scheduled jobs", "description": "Schedules, which make jobs by a timetable."},
    {"name": "calendars", "description": "Days, holidays and hours at which schedules skip."},
    {"name": "jobs", "description": "Units of work: submit, watch and control them."},
    {"name": "events", "description": "What has happened, for which jobs wait."},
    {"name": "groups", "description": "Jobs submitted together, in parallel or in order."},
    {"name": "templates", "description": "Tasks with arguments and a policy, to make jobs from."},
    {"name": "lanes", "description": "Limits on what runs at once, with waiting lines."},
    {"name": "direct execution", "description": "A task in this process, in a lane's next slot."},
    {"name": "queues", "description": "The broker's queues."},
    {"name": "dead letters", "description": "Messages that could not be handled."},
    {"name": "workers", "description": "Workers, and what they run and use."},
    {"name": "webhooks", "description": "Events that are sent to other programs."},
    {"name": "scheduler", "description": "Beats, and statistics of all jobs."},
    {"name": "health", "description": "For probes, without a token."},
    {"name": "audit", "description": "The changes that people made."},
]
#: Statuses that no reading request gets.
_OF_CHANGES = {"400", "409", "413"}


def install(app: FastAPI) -> None:
    """Replaces the app's OpenAPI document."""

    def document() -> dict[str, Any]:
        if not app.openapi_schema:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
        servers=app.servers or None,
    )
    for methods in document["paths"].values():
        for method, operation in methods.items():
            _correct(method, operation)
    return document


def _correct(method: str, operation: dict[str, Any]) -> None:
    responses = operation.get("responses", {})
    is_open = not operation.get("security")
    for status in list(responses):
        if not status.isdigit() or int(status) < 400:
            continue
        is_of_changes = method == "get" and status in _OF_CHANGES
        if is_of_changes or (is_open and status in {"401", "403", "404", "422"}):
            del responses[status]
            continue
        content = responses[status].get("content", {})
        if "application/json" in content:
            content[MEDIA_TYPE] = content.pop("application/json")
