"""The endpoints of jobs, groups, lanes and templates."""

from pgbeat.web.api.jobs import (
    bulk,
    direct,
    events,
    groups,
    job_history,
    job_trees,
    jobs,
    lanes,
    results,
    templates,
)

#: `events` is before `jobs`, for which /jobs/events would be a job.
MODULES = (events, bulk, jobs, job_trees, job_history, results, groups, templates, lanes, direct)
