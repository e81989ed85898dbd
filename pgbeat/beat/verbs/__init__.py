"""Decides, checks and launches for people, besides the timetable."""
