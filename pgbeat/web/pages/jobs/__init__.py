"""The pages of jobs, groups, lanes and templates."""

from pgbeat.web.pages.jobs import bulk, groups, job, job_templates, job_tree, jobs, lanes, new_job

ROUTERS = (
    jobs.router,
    bulk.router,
    job.router,
    job_tree.router,
    new_job.router,
    groups.router,
    job_templates.router,
    lanes.router,
)
