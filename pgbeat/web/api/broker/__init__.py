"""The endpoints of queues, dead letters and workers."""

from pgbeat.web.api.broker import dead, queues, workers

MODULES = (queues, dead, workers)
