"""The pages of schedules and calendars."""

from pgbeat.web.pages.schedules import (
    backfill,
    calendars,
    new_schedule,
    schedule,
    schedule_preview,
    schedules,
)

ROUTERS = (
    schedules.router,
    schedule.router,
    schedule_preview.router,
    new_schedule.router,
    backfill.router,
    calendars.router,
)
