"""The Celery app of the harness's workers: one task, acknowledged late, whose jobs are tracked."""

import os
import signal
import time
from struct import Struct

from celery import Celery

from pgbeat.config import postgres_url

#: What a task that ended tells the adapter: when its job was sent, began and ended.
NOTE = Struct("=ddd")
#: The variable with the number of the pipe that the adapter reads notes from.
NOTES = "HARNESS_NOTES"

_notes = int(os.environ.get(NOTES, "-1"))
_work = int(os.environ.get("JOB_WORK_MS", "1")) / 1000

app = Celery("harness")
app.conf.update(
    broker_url=f"pgbeat+{postgres_url(os.environ['DATABASE_URL']).render_as_string(False)}",
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_ignore_result=True,
)


@app.task(name="bench.job")
def job(sent: float, padding: str) -> None:
    """Works for `JOB_WORK_MS`, and tells the adapter."""
    began = time.time()
    if _work:
        time.sleep(_work)
    try:
        os.write(_notes, NOTE.pack(sent, began, time.time()))
    except BrokenPipeError:  # the adapter was killed, and so is all that it had started
        os.kill(os.getpid(), signal.SIGKILL)
