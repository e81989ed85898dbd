"""Moving in: what another scheduler has in its store, as rows of pgbeat's.

`arrivals` are schedules in the words of rows. Each source reads its store and nothing else, and
says of each schedule what row it becomes, or why none: `celery_file` (Celery's own
`celerybeat-schedule`), `django_celery_beat`, `redbeat`, `sqlalchemy_celery_beat`. `timetables`
has what they share: Celery's kinds of schedule. `plan` says what is to be done with the arrivals,
`rows` does it.
"""
