"""Beats that kill themselves at a chosen step of a tick, one after another.

`python -m tests.nursery STEP` imports everything once; for each line on its standard input it
forks a beat, which dies by SIGKILL when its tick reaches the step, and then prints how it ended.
"""

import os
import signal
import sys
from typing import Any

from celery.beat import Service

from pgbeat.scheduler import Scheduler
from tests.app import app

STEPS = ("before claim", "after conditions", "after messages", "before commit", "after commit")


class Mortal(Scheduler):
    """Dies at the step named by `TESTS_DIE_AT`."""

    step = os.environ.get("TESTS_DIE_AT")

    def reached(self, step: str) -> None:
        """The seam: SIGKILL, as sudden as it gets."""
        if step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Forks a beat for each line read."""
    Mortal.step = sys.argv[1]
    app.finalize()
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            Service(app, scheduler_cls=Mortal).start()
            os._exit(1)
        _, status = os.waitpid(child, 0)
        print("killed" if os.WTERMSIG(status) == signal.SIGKILL else f"status {status}", flush=True)


def start(env: dict[str, str], step: str) -> Any:
    """The nursery as a process with pipes."""
    import subprocess

    return subprocess.Popen(
        [sys.executable, "-m", "tests.nursery", step],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
        text=True,
    )


if __name__ == "__main__":
    main()
