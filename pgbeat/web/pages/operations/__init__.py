"""The pages of operators: beats, errors, tasks, webhooks and the audit log."""

from pgbeat.web.pages.operations import errors, find, system, task, webhooks

MODULES = (errors, find, task, system, webhooks)
