"""Keeps and reads what ended over time: the load, errors and tasks."""
