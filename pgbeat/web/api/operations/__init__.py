"""The endpoints of operators: health, load, errors, webhooks and the audit log."""

from pgbeat.web.api.operations import audit, errors, find, health, load, tasks, webhooks

MODULES = (webhooks, health, load, errors, tasks, find, audit)
