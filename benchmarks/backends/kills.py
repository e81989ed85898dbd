"""Kills workers at the end of chords, and counts the bodies that are lost or run twice."""

import os
import signal
from subprocess import Popen
from typing import Any, Protocol

from beats.measures import Figures
from beats.processes import wait_until
from brokers.executions import Executions

from backends.contenders import Contender

#: Where a worker kills itself: just before it publishes the body, and just after.
STEPS = ("before", "after")
#: Seconds until a worker must have died, and until a body that has not run counts as lost.
_DEATH, _PATIENCE = 30.0, 40.0
#: The members of a chord.
_MEMBERS = 3


class Workers(Protocol):
    """What starts a contender's processes."""

    def begin_worker(self, contender: Contender, processes: int = 2, **settings: Any) -> Popen[str]:
        """Starts a worker."""

    def ask(self, contender: Contender, command: str, *arguments: float) -> Figures:
        """Runs a command of `backends.child`."""

    def kill(self, process: Popen[Any]) -> None:
        """Ends a process and its children."""


def chord_kills(runner: Workers, contender: Contender, times: int) -> Figures:
    """Kills so many workers at each step; another worker goes on."""
    if not contender.redelivers:
        return {"note": "n/a"}
    figures: dict[str, float] = {}
    for step in STEPS:
        lost = doubled = 0
        for _ in range(times):
            executions = Executions(contender.spec.executions)
            victim = runner.begin_worker(contender, 1, task_acks_late=True, dies_at=step)
            runner.ask(contender, "send_chord", _MEMBERS)
            if not wait_until(lambda died=victim.poll: died() is not None, _DEATH):
                raise RuntimeError(f"no worker died {step} publishing the body")
            survivor = runner.begin_worker(contender, 1, task_acks_late=True)
            ran = wait_until(lambda of=executions: bodies(of) > 0, _PATIENCE)
            # A second body comes as soon as the first, if at all.
            ran and wait_until(lambda of=executions: bodies(of) > 1, 2.0)
            lost, doubled = lost + (not ran), doubled + (bodies(executions) > 1)
            runner.kill(survivor)
        figures |= {f"{step}_lost": lost, f"{step}_twice": doubled}
    return figures


def bodies(executions: Executions) -> int:
    """Returns how many bodies have begun."""
    return sum(1 for each in executions.read() if each.sent == BODY)


#: Marks a body's record.
BODY = 1.0


def die() -> None:
    """Kills the worker with all its processes."""
    os.killpg(0, signal.SIGKILL)
