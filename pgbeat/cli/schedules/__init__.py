"""The commands on schedules and calendars."""
