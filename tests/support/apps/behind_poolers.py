"""Defines an app of all roles; `TESTS_BROKER` is its broker, `TESTS_DIRECT` its direct_url."""

import os

from celery import Celery

app = Celery("pooled", broker=os.environ.get("TESTS_BROKER"), backend="pgbeat")
app.conf.update(
    broker_connection_retry_on_startup=True,
    pgbeat_loop_interval=0.5,
    pgbeat_web_tasks=["*"],
    pgbeat_web_direct=True,
    pgbeat_webhook_private=True,
)
if "TESTS_DIRECT" in os.environ:
    app.conf.broker_transport_options = {"direct_url": os.environ["TESTS_DIRECT"]}


@app.task(name="tests.add")
def add(x: int = 1, y: int = 2) -> int:
    return x + y
