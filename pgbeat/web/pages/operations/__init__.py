"""The pages of operators: beats, errors, tasks, webhooks and the audit log."""

from pgbeat.web.pages.operations import audits, beats, errors, find, task, webhooks

ROUTERS = (errors.router, find.router, task.router, beats.router, webhooks.router, audits.router)
