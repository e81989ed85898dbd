"""Has a worker die while it records the ends of jobs in a lane; the tasks are `journal`'s.

`TESTS_DIE_AT` names a step: sooner or later, but only once, a process that reaches it kills all
processes of its worker by SIGKILL.
"""

import os
import random
import signal

from pgbeat.jobs.flow import dispatch
from pgbeat.jobs.lanes import slots
from pgbeat.worker.recording.recorder_session import RecorderSession
from tests.support.apps.files import is_first
from tests.support.apps.journal import app
from tests.support.apps.steps import between

__all__ = ["STEPS", "app"]

STEPS = ("before the slot", "after the slot", "after the message", "after the commit")


def _reached(step: str) -> None:
    if step != os.environ.get("TESTS_DIE_AT") or random.random() > 0.1:  # noqa: S311
        return
    if is_first("death"):
        os.killpg(0, signal.SIGKILL)


if os.environ.get("TESTS_DIE_AT"):
    between(_reached, slots, "take_next", STEPS[0], STEPS[1])
    between(_reached, dispatch, "dispatch_in_transaction", None, STEPS[2])
    between(_reached, RecorderSession, "_commit", None, STEPS[3])
