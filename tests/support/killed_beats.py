"""Runs beats that kill themselves at a chosen step of a tick, one after another.

`python -m tests.support.killed_beats STEP` imports everything once; for each line on its standard
input it forks a beat, which dies by SIGKILL at the step of its tick, and prints how it ended.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from celery.beat import Service

from pgbeat import Context, JobRequest, Launcher, launcher
from pgbeat.beat.scheduler import Scheduler
from tests.support.apps.basic import app
from tests.support.processes import until
from tests.support.rows import Sql

STEPS = (
    "before claim",
    "after conditions",
    "after sending",
    "after messages",
    "before commit",
    "after commit",
)


@launcher
class Three(Launcher):
    """Asks for three jobs each time."""

    def check_conditions(self, ctx: Context) -> bool:
        """Launches always."""
        return True

    def prepare_job_data(self, ctx: Context) -> list[JobRequest]:
        """Asks for two jobs."""
        return [JobRequest(kwargs={"x": key}, run_key=key) for key in ("a", "b", "c")]


class Mortal(Scheduler):
    """Dies at the step named by `TESTS_DIE_AT`."""

    step = os.environ.get("TESTS_DIE_AT")

    def reached(self, step: str) -> None:
        """Kills this process by SIGKILL at the step."""
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


@contextmanager
def opened(env: dict[str, str], step: str) -> Iterator[Callable[[], None]]:
    """Opens the nursery: what it yields has one beat start and die at the step."""
    victims = subprocess.Popen(
        [sys.executable, "-m", "tests.support.killed_beats", step],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
        text=True,
    )
    asked, said = victims.stdin, victims.stdout
    assert asked is not None
    assert said is not None

    def kill_one() -> None:
        asked.write("\n")
        asked.flush()
        assert said.readline() == "killed\n"

    try:
        yield kill_one
    finally:
        victims.kill()
        victims.communicate()


def take_over(sql: Sql, kill_one: Callable[[], None], beat: Callable[[], Scheduler]) -> None:
    """Makes every schedule due, kills a beat over them, and has another decide what is left."""

    def is_done() -> bool:
        due = "SELECT FROM pgbeat.schedules WHERE next_run <= now()"
        return bool(survivor.run_due()) or not sql(due)

    sql(
        "UPDATE pgbeat.schedules SET next_run = now(), starts_at = now()"
    )  # in turn: by the quick path
    kill_one()
    survivor = beat()
    until(is_done)
    survivor.close()


if __name__ == "__main__":
    main()
