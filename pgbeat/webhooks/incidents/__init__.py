"""Incidents: the failures of a schedule, or of a task without one, that a webhook tells of as one."""
