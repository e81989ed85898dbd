"""An app whose tasks snooze, and may kill their process meanwhile."""

import time
from typing import Any

from celery import Task
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

import pgbeat
from pgbeat.config import postgres_url
from tests.support.apps.files import FOLDER, die_once, note
from tests.support.apps.policies import URL, app
from tests.support.awaiting import Awaiting

__all__ = ["app"]

engine = create_engine(postgres_url(URL))


def _ran(name: str) -> int:
    """Notes a run; the number of runs with that name so far."""
    note(f"{name} {time.monotonic()}")
    return sum(line.split()[0] == name for line in (FOLDER / "journal").read_text().splitlines())


def _snooze(name: str, times: int, delay: float) -> int:
    number = _ran(name)
    if number <= times:
        raise pgbeat.Snooze(delay)
    return number


@app.task(name="snoozing.early", pgbeat={"lane": "narrow"})
def early(name: str, times: int = 1, delay: float = 0.3) -> int:
    """Snoozes so many times; its message is acknowledged before it runs."""
    return _snooze(name, times, delay)


@app.task(name="snoozing.late", acks_late=True, pgbeat={"lane": "narrow"})
def late(name: str, times: int = 1, delay: float = 0.3) -> int:
    """Snoozes so many times; its message is acknowledged in the end."""
    return _snooze(name, times, delay)


@app.task(name="snoozing.finishing", acks_late=True, pgbeat={})
def finishing(name: str) -> int:
    """Snoozes once, after it has written a row that must not stay."""
    with pgbeat.finish(Session(engine)) as session:
        session.execute(text("INSERT INTO effects VALUES (:name)"), {"name": name})
        return _snooze(name, 1, 0.3)


@app.task(name="snoozing.awaited", base=Awaiting, acks_late=True, pgbeat={"max_attempts": 2})
async def awaited(name: str) -> int:
    """Snoozes once, and fails once."""
    number = _snooze(name, 1, 0.3)
    if number == 2:
        raise ValueError("the second time")
    return number


@app.task(name="snoozing.plain", max_retries=0)
def plain(name: str, times: int = 2) -> int:
    """Snoozes more often than it may be retried; it is no job."""
    return _snooze(name, times, 0.2)


class _Outside(Task):
    """A task that raises what its name says before its run, and from around it."""

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        self._raise("before_start", *args)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        value = self.run(*args, **kwargs)
        self._raise("call", *args)
        return value

    def _raise(self, here: str, name: str, where: str) -> None:
        if here != where or _ran(name) > 1:
            return
        if self.name.endswith("failing"):
            raise ValueError(name)
        raise pgbeat.Skip(name) if name.startswith("skip") else pgbeat.Snooze(0.3)


@app.task(name="snoozing.outside", base=_Outside, acks_late=True, pgbeat={})
def outside(name: str, where: str) -> int:
    """Snoozes once, or is skipped, by its class."""
    return _ran(f"{name}-run")


@app.task(name="snoozing.failing", base=_Outside, pgbeat={"max_attempts": 2, "retry_base": 0.1})
def failing(name: str, where: str) -> int:
    """Fails once, by its class."""
    return _ran(f"{name}-run")


@app.task(name="snoozing.around", base=_Outside)
def around(name: str, where: str) -> int:
    """Snoozes once, by its class; it is no job."""
    return _ran(f"{name}-run")


class _Dying(Task):
    """A task whose process is killed once, just before its snooze is recorded, or just after."""

    def signature_from_request(self, *args: Any, **kwargs: Any) -> Any:
        if self.name.endswith("before"):
            die_once(self.name)
        return super().signature_from_request(*args, **kwargs)

    def on_retry(self, *args: Any) -> None:
        if self.name.endswith("after"):
            die_once(self.name)


def _held(name: str, times: int) -> int:
    number = _ran(name)
    time.sleep(0.1)  # long enough to overlap with another one, if that could be
    _ran(f"{name}-over")
    if number <= times:
        raise pgbeat.Snooze(0.5)
    return number


@app.task(name="snoozing.before", base=_Dying, acks_late=True, pgbeat={"lane": "narrow"})
def before(name: str) -> int:
    """Is killed as it snoozes, and snoozes then."""
    return _held(name, 2)


@app.task(name="snoozing.after", base=_Dying, acks_late=True, pgbeat={"lane": "narrow"})
def after(name: str) -> int:
    """Snoozes, and is killed before its message is acknowledged."""
    return _held(name, 1)
