"""An example Celery app: `celery -A tasks worker`, `celery -A tasks beat -S pgbeat.Scheduler`.

Database, broker and results are one Postgres, `$PGBEAT_URL`. The tasks work on the tables in
`tasks.store`; `python -m tasks.schedules` creates these and writes the schedules.
"""

import os

from celery import Celery

from pgbeat.config import postgres_url

#: The database's DSN, in any form.
URL = postgres_url(os.environ.get("PGBEAT_URL") or "postgresql://localhost/pgbeat")
_dsn = URL.render_as_string(hide_password=False)

app = Celery("tasks")
app.conf.update(
    broker_url=f"pgbeat+{_dsn}",
    broker_connection_retry_on_startup=True,
    result_backend=f"pgbeat+{_dsn}",
    result_extended=True,
    accept_content=["json"],
    task_serializer="json",
    result_serializer="json",
    task_track_started=True,
    timezone="UTC",
    pgbeat_url=_dsn,
)
for module in ("vocabulary", "maintenance", "prices", "launchers", "shop"):
    app.autodiscover_tasks([__name__], related_name=module)
