"""The REST API: a module for each noun."""

from fastapi import APIRouter, Depends
from starlette.routing import Match
from starlette.types import Scope

from pgbeat.web.api import (
    audit,
    bulk,
    calendars,
    dead,
    decisions,
    direct,
    errors,
    events,
    executions,
    find,
    forecast,
    groups,
    health,
    job_logs,
    job_traces,
    job_trees,
    jobs,
    lanes,
    load,
    previews,
    queues,
    results,
    schedules,
    tasks,
    templates,
    timeline,
    webhooks,
    workers,
)
from pgbeat.web.api.queries import only_known
from pgbeat.web.backend import path_below_root


class _Api(APIRouter):
    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Tries none of the many endpoints for a page of the console, whose viewers are many."""
        if path_below_root(scope).startswith("/console/"):
            return Match.NONE, {}
        return super().matches(scope)


router = _Api(dependencies=[Depends(only_known)])
for _each in (
    previews,  # before `schedules`, for which it would be a name
    schedules,
    decisions,
    calendars,
    events,  # before `jobs`, for which /jobs/events would be a job
    bulk,
    jobs,
    job_trees,
    job_traces,
    job_logs,
    executions,
    results,
    groups,
    templates,
    lanes,
    direct,
    queues,
    dead,
    workers,
    webhooks,
    health,
    load,
    timeline,
    forecast,
    errors,
    tasks,
    find,
    audit,
):
    router.include_router(_each.router)
