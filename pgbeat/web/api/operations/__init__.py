"""The endpoints of operators: health, load, errors, webhooks and the audit log."""

from pgbeat.web.api.operations import audit, errors, fence, find, health, load, tasks, webhooks

MODULES = (webhooks, health, load, errors, tasks, find, audit, fence)
