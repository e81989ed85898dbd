"""Monitoring: how schedules and their jobs fare, as every view of them shows it."""
