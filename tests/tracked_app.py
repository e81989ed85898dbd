"""The app of the processes under test, its workers telling how launched jobs fare."""

import os
import signal
import sys

import pgbeat.worker as _worker  # importing it is what turns it on
from tests.app import app as stock_app

app = stock_app
__all__ = ["_worker", "app"]


@app.task(name="tests.fail", shared=False)
def fail() -> None:
    """Raises."""
    raise ValueError("no such thing")


@app.task(name="tests.die", shared=False)
def die() -> None:
    """Takes its process with it."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="tests.retry", bind=True, max_retries=1, shared=False)
def retry(self: "object") -> None:
    """Wants to be run again, once."""
    if self.request.retries == 0:  # type: ignore[attr-defined]
        raise self.retry(countdown=0)  # type: ignore[attr-defined]
    sys.stdout.write("second\n")
