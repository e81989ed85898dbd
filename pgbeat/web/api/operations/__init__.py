"""The endpoints of operators: health, load, errors, webhooks and the audit log."""

from pgbeat.web.api.operations import audit, errors, find, health, load, tasks, webhooks

ROUTERS = (
    webhooks.router,
    health.router,
    load.router,
    errors.router,
    tasks.router,
    find.router,
    audit.router,
)
