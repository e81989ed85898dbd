"""The pages of schedules and calendars."""

from pgbeat.web.pages.schedules import (
    backfill,
    calendars,
    new_schedule,
    schedule,
    schedule_preview,
    schedules,
)

MODULES = (schedules, schedule, schedule_preview, new_schedule, backfill, calendars)
