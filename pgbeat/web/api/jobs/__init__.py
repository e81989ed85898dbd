"""The endpoints of jobs, groups, lanes and templates."""

from pgbeat.web.api.jobs import (
    bulk,
    direct,
    events,
    executions,
    groups,
    job_logs,
    job_traces,
    job_trees,
    jobs,
    lanes,
    results,
    templates,
)

ROUTERS = (
    events.router,  # before `jobs`, for which /jobs/events would be a job
    bulk.router,
    jobs.router,
    job_trees.router,
    job_traces.router,
    job_logs.router,
    executions.router,
    results.router,
    groups.router,
    templates.router,
    lanes.router,
    direct.router,
)
