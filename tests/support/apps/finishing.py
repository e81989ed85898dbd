"""Defines tasks that insert rows and end in one transaction; processes may die at a step of that.

`TESTS_DATABASE` is the database, `TESTS_FOLDER` where deaths are counted, `TESTS_SETTINGS` more of
the app's settings, as JSON. `TESTS_DIE_AT` names a step: a process that reaches it kills itself by
SIGKILL now and then, `TESTS_DEATHS` times in all; with `TESTS_DIE_TOGETHER` the whole worker dies.
With `TESTS_ASYNC` the tasks use asyncio sessions.
"""

import asyncio
import json
import os
import random
import signal
import time
from typing import Any

from celery import Celery, Task
from celery.backends.base import DisabledBackend
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session as ORM
from sqlalchemy.orm import sessionmaker

import pgbeat
from pgbeat.broker.transport.held_messages import HeldMessages
from pgbeat.config import postgres_url
from pgbeat.results.ending import TaskEnding
from pgbeat.worker.finishing.async_finish import _Adopted
from pgbeat.worker.finishing.finish import _OwnSession
from tests.support.apps.files import FOLDER, is_first
from tests.support.apps.steps import between
from tests.support.awaiting import Awaiting

DEATHS = int(os.environ.get("TESTS_DEATHS", "20"))
STEPS = (
    "before the end",
    "after the acknowledgement",
    "after the messages",
    "before the commit",
    "after the commit",
    "after the end",
)

url = os.environ.get("TESTS_DATABASE", "postgresql://nowhere/none")
app = Celery("finishing", broker=f"pgbeat+{url}", backend="pgbeat://")
app.conf.update(
    {
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "broker_connection_retry_on_startup": True,
        **json.loads(os.environ.get("TESTS_SETTINGS", "{}")),
    }
)
Session = sessionmaker(create_engine(postgres_url(url)))
asyncio_engine = create_async_engine(postgres_url(url))


def _reached(step: str) -> None:
    if step != os.environ.get("TESTS_DIE_AT") or random.random() > 0.05:  # noqa: S311
        return
    if any(is_first(f"death-{n}") for n in range(DEATHS)):
        if os.environ.get("TESTS_DIE_TOGETHER"):
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


if os.environ.get("TESTS_DIE_AT"):
    between(_reached, TaskEnding, "succeed", STEPS[0], STEPS[5])
    between(_reached, TaskEnding, "_acknowledge", None, STEPS[1])
    between(_reached, HeldMessages, "publish", None, STEPS[2])
    for kind in (_OwnSession, _Adopted):
        between(_reached, kind, "commit", STEPS[3], STEPS[4])


INSERT = text("INSERT INTO written (what, n) VALUES (:what, :n)")


def write(what: str, n: int) -> None:
    """Inserts a row into the test's table, in the transaction that ends the task."""
    if os.environ.get("TESTS_ASYNC"):
        asyncio.run(write_async(what, n))
        return
    with pgbeat.finish(Session()) as session:
        session.execute(INSERT, {"what": what, "n": n})


async def write_async(what: str, n: int) -> None:
    """Does the same in a session for asyncio."""
    async with pgbeat.finish(AsyncSession(asyncio_engine)) as session:
        await session.execute(INSERT, {"what": what, "n": n})


@app.task(name="finishing.book", shared=False)
def book(n: int) -> int:
    """Inserts a row."""
    write("booked", n)
    return n


@app.task(name="finishing.confirm", shared=False)
def confirm(n: int) -> int:
    """Inserts a row."""
    write("confirmed", n)
    return n


@app.task(name="finishing.fail", shared=False)
def fail(n: int) -> None:
    """Inserts a row, and fails."""
    write("failed", n)
    raise ValueError("it fails")


@app.task(name="finishing.retry", bind=True, shared=False)
def retry(self: Any, n: int, times: int = 2) -> int:
    """Inserts a row, and wants to be run again so often."""
    write(f"attempt {self.request.retries}", n)
    if self.request.retries < times:
        raise self.retry(countdown=0)
    return n


@app.task(name="finishing.replace", bind=True, shared=False)
def replace(self: Any, n: int) -> int:
    """Inserts a row, and has another task run in its place."""
    write("replaced", n)
    raise self.replace(book.s(n))


@app.task(name="finishing.commit", shared=False)
def commit(n: int) -> None:
    """Commits, which it must leave to pgbeat."""
    with pgbeat.finish(Session()) as session:
        session.execute(INSERT, {"what": "committed", "n": n})
        session.commit()


@app.task(name="finishing.twice", shared=False)
def twice(n: int) -> None:
    """Has two blocks."""
    for _ in range(2):
        write("twice", n)


@app.task(name="finishing.early", shared=False, acks_late=False)
def early(n: int) -> None:
    """Is acknowledged before it runs."""
    write("early", n)


@app.task(name="finishing.elsewhere", shared=False)
def elsewhere(n: int) -> None:
    """Has a session in another database."""
    with pgbeat.finish(ORM(create_engine(postgres_url(url).set(database="postgres")))) as session:
        session.execute(INSERT, {"what": "elsewhere", "n": n})


@app.task(name="finishing.wait", shared=False)
def wait(n: int) -> int:
    """Inserts a row and waits until a test makes the file `go`."""
    write("waited", n)
    (FOLDER / "waiting").touch()
    while not (FOLDER / "go").exists():
        time.sleep(0.01)
    return n


@app.task(name="finishing.plain", shared=False)
def plain(n: int) -> int:
    """Returns what it is given."""
    return n


@app.task(name="finishing.collect", shared=False)
def collect(parts: list[int]) -> int:
    """Inserts one row for a chord."""
    write("collected", len(parts))
    return len(parts)


class Stubborn(Task):  # type: ignore[type-arg,unused-ignore]
    """A task that runs once more at once if it fails, and returns -1 if it can't divide."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.run(*args, **kwargs)
        except LookupError:
            return self.run(*args, **kwargs)
        except ArithmeticError:
            return -1


@app.task(name="finishing.stubborn", bind=True, base=Stubborn, shared=False)
def stubborn(self: Any, n: int) -> int:
    """Inserts a row, and fails, or fails the first time and wants to be run again after that."""
    write("tried", n)
    if not n:
        raise ZeroDivisionError
    if is_first(f"tried-{n}"):
        raise LookupError("it fails")
    if n > self.request.retries + 1:
        raise self.retry(countdown=0)
    return n


@app.task(name="finishing.awaited", base=Awaiting, shared=False)
async def awaited(n: int) -> int:
    """Inserts a row; in a session for asyncio, that can't be."""
    await asyncio.sleep(0)
    write("awaited", n)
    if n:
        await write_async("awaited", n)
    return n


@app.task(name="finishing.aside", bind=True, shared=False, backend=DisabledBackend(app))
def aside(self: Any, n: int) -> None:
    """Keeps its results elsewhere, and inserts a row at its second attempt."""
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    write("aside", n)
