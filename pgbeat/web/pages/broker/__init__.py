"""The pages of queues, dead letters and workers."""

from pgbeat.web.pages.broker import queues, workers

ROUTERS = (queues.router, workers.router)
