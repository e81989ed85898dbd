"""Lanes: limits on concurrency, their slots, and the jobs that wait for one."""
