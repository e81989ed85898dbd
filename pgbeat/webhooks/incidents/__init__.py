"""Incidents: failures of a schedule, or a task without one, that a webhook tells of as one."""
