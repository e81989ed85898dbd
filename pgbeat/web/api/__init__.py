"""The REST API: a module for each noun."""

from fastapi import APIRouter, Depends

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

router = APIRouter(dependencies=[Depends(only_known)])
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
    errors,
    tasks,
    find,
    audit,
):
    router.include_router(_each.router)
