"""The pages of operators: beats, errors, tasks, webhooks and the audit log."""

from pgbeat.web.pages.operations import audits, beats, errors, find, task, webhooks

MODULES = (errors, find, task, beats, webhooks, audits)
