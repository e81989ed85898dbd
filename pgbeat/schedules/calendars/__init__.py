"""Calendars: which times schedules skip, and the verbs on them."""
