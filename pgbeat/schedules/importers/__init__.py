"""Imports schedules from other schedulers' stores.

Each source only reads its store, and converts each schedule to an `imported.Arrival`, or says why
it can't: `celery_file` (Celery's own `celerybeat-schedule`), `django_celery_beat`, `redbeat`,
`sqlalchemy_celery_beat`; `apscheduler`, `crontab`, `kubernetes`, `pg_cron`. They share
`timetables`, which converts Celery's kinds of schedule, `databases` and `pickles`. `plan` compares
arrivals with the existing rows, and `rows` writes.
"""
