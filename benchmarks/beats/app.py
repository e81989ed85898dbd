"""The Celery app of a subprocess, for the contender that the environment names."""

from typing import Any

from celery import Celery

from beats.contenders import Contender
from beats.peers import CONTENDERS
from beats.spec import TASK, Spec

contender: Contender = CONTENDERS[(spec := Spec.from_environment()).contender](spec)
contender.prepare()

app = Celery("bench", set_as_current=True)
app.conf.update(
    timezone="UTC",
    task_ignore_result=True,
    # No contender gets the schedule that would clean up results.
    result_expires=None,
    **contender.settings(),
)
app.conf.update(spec.settings)


@app.task(name=TASK, ignore_result=True)
def noop() -> Any:
    """The task of every schedule."""
