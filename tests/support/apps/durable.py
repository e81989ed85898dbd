"""An app whose tasks have steps; its processes may die at each statement that these send.

With `TESTS_DIE` a process kills itself by SIGKILL before and after each statement and commit of the
thread that runs a task: once for each, and for each number of steps that were recorded before.
"""

import os
import threading
from typing import Any

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session

import pgbeat
from pgbeat.config import postgres_url
from pgbeat.errors import TimedOut
from pgbeat.worker import reporting
from tests.support.apps.files import die_once, is_first, note, wait_for
from tests.support.apps.policies import URL, app

__all__ = ["app"]

app.conf.update(
    task_reject_on_worker_lost=True,
    # Whoever dies so often would not be delivered again.
    broker_transport_options={"delivery_limit": 0},
)
engine = create_engine(postgres_url(URL))
_moments = threading.local()


def _moment(*_: Any) -> None:
    """Dies here, unless another process did."""
    attempt, _recorder = reporting.current_attempt()
    if attempt is None or threading.current_thread() is not threading.main_thread():
        return
    if getattr(_moments, "of", None) != attempt.id:
        _moments.of, _moments.number = attempt.id, 0
    _moments.number += 1
    known = 0 if attempt.steps is None else len(attempt.steps.known)
    die_once(f"death-{known}-{_moments.number}")


if os.environ.get("TESTS_DIE"):
    for moment in ("before_cursor_execute", "after_cursor_execute", "commit"):
        event.listen(Engine, moment, _moment)


def _write(session: Session, name: str) -> None:
    session.execute(text("INSERT INTO effects VALUES (:name)"), {"name": name})


def _said(line: str) -> str:
    note(line)
    return line


@app.task(name="durable.order", acks_late=True, pgbeat={"lane": "narrow"})
def order(name: str, timeout: str | None = "1 hour") -> Any:
    """Pays, books, waits for an event and sleeps; the last step books, too."""
    note(f"{name} begins")
    pgbeat.step("pay", _said, f"{name} paid")
    for what in ("booked", "counted"):
        with Session(engine) as session:
            pgbeat.step("book", _write, session, f"{name} {what}", session=session)
    try:
        amount = pgbeat.wait_for(f"paid/{name}", timeout)
    except TimedOut:
        amount = None
    pgbeat.sleep(0.2)
    with Session(engine) as session:
        pgbeat.step("mail", _write, session, f"{name} mailed {amount}", session=session)
    return amount


@app.task(name="durable.failing", acks_late=True, pgbeat={"max_attempts": 3, "retry_base": 0.1})
def failing(name: str) -> int:
    """Fails twice, each time after another step."""
    first = pgbeat.step("first", _said, f"{name} first")
    if is_first(f"{name}-1"):
        raise ValueError("after the first")
    second = pgbeat.step("second", _said, f"{name} second")
    if is_first(f"{name}-2"):
        raise ValueError("after the second")
    return len([first, second])


@app.task(name="durable.emptying", acks_late=True, pgbeat={})
def emptying(items: list[int], seen: dict[str, int]) -> Any:
    """Changes its arguments, and sleeps."""
    seen["attempts"] += 1
    done = []
    while items:
        done.append(pgbeat.step("item", abs, items.pop()))
    pgbeat.sleep(0.1)
    return seen, done


@app.task(name="durable.swallowing", acks_late=True, pgbeat={})
def swallowing(name: str) -> str:
    """Catches what ends its attempt, and continues."""
    note(f"{name} begins")
    for verb in (lambda: pgbeat.sleep(0.5), lambda: pgbeat.step("after", _said, f"{name} after")):
        try:
            verb()
        except Exception as error:
            note(f"{name} caught {type(error).__name__}")
    return name


@app.task(name="durable.wrapping", bind=True, acks_late=True, pgbeat={})
def wrapping(self: Any, name: str, how: str) -> Any:
    """Makes another error, a retry or a replacement of all that it catches."""
    note(f"{name} begins")
    try:
        return pgbeat.wait_for(name)
    except Exception as error:
        if how == "replace":
            self.replace(swallowing.si(name))
        raise (self.retry(exc=error) if how == "retry" else ValueError("other")) from error


@app.task(name="durable.overtaken", acks_late=True, pgbeat={})
def overtaken(name: str) -> Any:
    """Runs a step at the same time as another attempt, whose worker is taken for dead."""
    is_slow = is_first(f"{name}-slow")

    def write(session: Session) -> str:
        if is_slow:
            note(f"{name} slow")
            wait_for(name)
        _write(session, name)
        return "slow" if is_slow else "quick"

    with Session(engine) as session:
        value = pgbeat.step("write", write, session, session=session)
    note(f"{name} has {value}")
    return value


@app.task(name="durable.progressing", acks_late=True, pgbeat={})
def progressing(name: str) -> None:
    """Has steps before and after it reports its progress; each waits to be released."""
    pgbeat.step("first", wait_for, f"{name}-1")
    pgbeat.step("second", wait_for, f"{name}-2")
    pgbeat.progress(1, 2, "half")
    pgbeat.step("third", wait_for, f"{name}-3")


@app.task(name="durable.early", pgbeat={})
def early() -> None:
    """Has a step, but its message is acknowledged before it runs."""
    pgbeat.step("one", _said, "never")


@app.task(name="durable.unknown", acks_late=True)
def unknown() -> None:
    """Has a step, but is no job."""
    pgbeat.sleep(1)


@app.task(name="durable.nested", acks_late=True, pgbeat={})
def nested() -> None:
    """Has a step within a step."""
    pgbeat.step("outer", lambda: pgbeat.step("inner", _said, "never"))
