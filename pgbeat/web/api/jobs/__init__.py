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

#: `events` is before `jobs`, for which /jobs/events would be a job.
MODULES = (
    events,
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
)
