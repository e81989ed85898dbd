"""The pages of queues, dead letters and workers."""

from pgbeat.web.pages.broker import queues, workers

MODULES = (queues, workers)
