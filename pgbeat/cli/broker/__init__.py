"""The commands on queues, dead letters and workers."""
