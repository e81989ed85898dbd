"""Pages of Django's admin site: schedules, ticks, jobs and lanes.

The site imports this module if the project has `django.contrib.admin`.
"""

from django.contrib import admin

from pgbeat.integrations.django.admin.history import JobAdmin, TickAdmin
from pgbeat.integrations.django.admin.lanes import LaneAdmin
from pgbeat.integrations.django.admin.schedules import ScheduleAdmin
from pgbeat.integrations.django.models import Job, Lane, Schedule, Tick

admin.site.register(Schedule, ScheduleAdmin)
admin.site.register(Tick, TickAdmin)
admin.site.register(Job, JobAdmin)
admin.site.register(Lane, LaneAdmin)
