"""The pages of jobs, events, groups, lanes and templates."""

from pgbeat.web.pages.jobs import bulk, events, groups, job, job_templates, jobs, lanes, new_job

MODULES = (jobs, bulk, job, new_job, groups, job_templates, events, lanes)
