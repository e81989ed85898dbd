"""The endpoints of schedules and calendars, and what becomes of schedules over time."""

from pgbeat.web.api.schedules import calendars, decisions, forecast, previews, schedules, timeline

ROUTERS = (
    previews.router,  # before `schedules`, for which it would be a name
    schedules.router,
    decisions.router,
    calendars.router,
    timeline.router,
    forecast.router,
)
