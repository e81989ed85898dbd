"""The endpoints of schedules and calendars, and what becomes of schedules over time."""

from pgbeat.web.api.schedules import calendars, decisions, forecast, previews, schedules, timeline

#: `previews` is before `schedules`, for which it would be a name.
MODULES = (previews, schedules, decisions, calendars, timeline, forecast)
