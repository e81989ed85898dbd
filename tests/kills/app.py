"""The app whose processes die: a task of ten steps, and the body of its chord.

`TESTS_BROKER` is the broker's URL, `TESTS_FOLDER` where the journal is, `KILLS_CHANCE` how likely a
process dies at a moment, `KILLS_SEED` chooses which, `KILLS_BUILD` is a broken build.
"""

import json
import os
import random
import signal
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from celery import Celery
from sqlalchemy import Engine, NullPool, create_engine, event, text
from sqlalchemy.orm import Session

import pgbeat
from pgbeat.config import postgres_url
from pgbeat.errors import TimedOut
from pgbeat.worker import reporting
from tests.kills.broken_builds import BUILDS
from tests.support.apps.files import note

URL = os.environ["TESTS_BROKER"]
CHANCE = float(os.environ["KILLS_CHANCE"])

app = Celery("kills", broker=URL, backend=URL)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"delivery_limit": 0},
    result_expires=None,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
)
engine = create_engine(postgres_url(URL), poolclass=NullPool)
BUILDS[os.environ["KILLS_BUILD"]]()


class _Chances:
    """The chances of this process, which a fork doesn't share with its parent."""

    pid = 0
    chance = random.Random()  # noqa: S311


def _moment(*_: Any) -> None:
    """Dies here, by chance, if a task runs."""
    attempt, _recorder = reporting.current_attempt()
    if attempt is None:
        return
    if _Chances.pid != os.getpid():
        _Chances.pid = os.getpid()
        _Chances.chance.seed(f"{os.environ['KILLS_SEED']} {_Chances.pid}")
    if _Chances.chance.random() < CHANCE:
        tell("died", attempt.job_id)
        os.kill(os.getpid(), signal.SIGKILL)


for moment in ("before_cursor_execute", "after_cursor_execute", "commit"):
    event.listen(Engine, moment, _moment)


def tell(what: str, run: str, *more: Any) -> None:
    """Notes what happens to a run."""
    note(json.dumps([what, run, *more]))


def _write(session: Session, run: str, name: str, value: str) -> None:
    columns = {"run": run, "name": name, "value": value}
    session.execute(text("INSERT INTO effects VALUES (:run, :name, :value)"), columns)


def _step(run: str, name: str, *, in_session: bool) -> str:
    """Does a step that returns something else each time it is called."""

    def call(session: Session | None = None) -> str:
        value = uuid4().hex
        tell("called", run, name, value)
        if session is not None:
            _write(session, run, name, value)
        return value

    if not in_session:
        return pgbeat.step(name, call)
    with Session(engine) as session:
        return pgbeat.step(name, call, session, session=session)


@app.task(name="kills.order", acks_late=True, pgbeat={})
def order(run: str, timeout: str | None, delay: float) -> list[Any]:
    """Has ten steps, five of them in a session; returns what they returned."""

    def wait() -> Any:
        try:
            return pgbeat.wait_for(f"paid/{run}", timeout)
        except TimedOut:
            return "timed out"

    def step(name: str, *, in_session: bool = False) -> Callable[[], Any]:
        return lambda: _step(run, name, in_session=in_session)

    values: list[Any] = []
    for call in (
        step("0"),
        step("1", in_session=True),
        step("2"),
        step("3", in_session=True),
        wait,
        step("5", in_session=True),
        lambda: pgbeat.sleep(delay),
        step("7"),
        step("8", in_session=True),
        step("9", in_session=True),
    ):
        value = call()
        tell("got", run, len(values), value)
        values.append(value)
    return values


@app.task(name="kills.close", acks_late=True, pgbeat={})
def close(values: list[Any], chord: str) -> list[Any]:
    """Ends a chord: by a step in a session."""
    tell("got", chord, 0, _step(chord, "close", in_session=True))
    return values
