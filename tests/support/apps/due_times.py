"""Defines a task that writes down its due time, is retried by Celery once, and then fails."""

import json
import os
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

import pgbeat
from tests.support.apps.basic import DATABASE
from tests.support.apps.basic import app as stock_app

app = stock_app
app.conf.update(json.loads(os.environ.get("TESTS_SETTINGS", "{}")))


@app.task(name="tests.tell", bind=True, shared=False, max_retries=1)
def tell(self: Any) -> None:
    """Writes down what `pgbeat.current` says."""
    known = pgbeat.current()
    assert known is not None
    names = ("job_id", "attempt", "schedule", "due_at", "interval_start", "interval_end", "trigger")
    said = {name: getattr(known, name) for name in names}
    with psycopg.connect(DATABASE) as connection:
        connection.execute(
            "INSERT INTO notes (id, data) VALUES (%s, %s)",
            (self.request.id, Jsonb(said, dumps=lambda value: json.dumps(value, default=str))),
        )
    raise self.retry(countdown=0.1) if not self.request.retries else ValueError("on purpose")
