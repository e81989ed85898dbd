"""The endpoints of operators: health, load, errors, events, webhooks and the audit log."""

from pgbeat.web.api.operations import (
    audit,
    errors,
    events,
    fence,
    find,
    health,
    load,
    tasks,
    webhooks,
)

MODULES = (webhooks, health, load, errors, tasks, find, events, audit, fence)
