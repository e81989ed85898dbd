"""Schedules: their rows, ticks, calendars, launchers, files and importers."""
