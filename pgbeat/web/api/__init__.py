"""The REST API: a module for each noun."""

from fastapi import APIRouter, Depends

from pgbeat.web.api import (
    audit,
    calendars,
    dead,
    decisions,
    direct,
    events,
    executions,
    groups,
    health,
    jobs,
    lanes,
    queues,
    schedules,
    templates,
    webhooks,
)
from pgbeat.web.api.queries import only_known

router = APIRouter(dependencies=[Depends(only_known)])
# A line for each module, in the order of the documentation.
router.include_router(schedules.router)
router.include_router(decisions.router)
router.include_router(calendars.router)
# Before the jobs: /jobs/events is no job's id.
router.include_router(events.router)
router.include_router(jobs.router)
router.include_router(executions.router)
router.include_router(groups.router)
router.include_router(templates.router)
router.include_router(lanes.router)
router.include_router(direct.router)
router.include_router(queues.router)
router.include_router(dead.router)
router.include_router(webhooks.router)
router.include_router(health.router)
router.include_router(audit.router)
