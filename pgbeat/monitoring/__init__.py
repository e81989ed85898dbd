"""Gauges, counters, statistics and health of schedules, jobs, lanes and queues."""
