"""The pages of schedules and calendars."""

from pgbeat.web.pages.schedules import backfill, calendars, schedule, schedule_preview, schedules

MODULES = (schedules, schedule, schedule_preview, backfill, calendars)
