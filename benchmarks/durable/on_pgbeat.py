"""pgbeat: tasks for a real worker, and what submits and wakes them."""

import statistics
import time
from typing import Any

from brokers.app import app
from celery.beat import Service
from servers import sqlalchemy
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import pgbeat
from durable.common import INSERT, LONG, charge, noted, spec, timed

engine = create_engine(sqlalchemy(spec.url.removeprefix("pgbeat+")))
#: The lane of those that sleep.
LANE = "bench"


@app.task(name="steps", acks_late=True, pgbeat={})
def steps(count: int) -> None:
    """Has steps that return a value."""
    timed(count, lambda name: pgbeat.step(name, charge))


def _write(session: Session) -> dict[str, Any]:
    session.execute(INSERT)
    return charge()


@app.task(name="rows", acks_late=True, pgbeat={})
def rows(count: int) -> None:
    """Has steps that write a row each, in the step's transaction."""

    def one(name: str) -> None:
        with Session(engine) as session:
            pgbeat.step(name, _write, session, session=session)

    timed(count, one)


@app.task(name="bare", acks_late=True, pgbeat={})
def bare(count: int) -> None:
    """Commits as many rows without steps."""

    def one(_name: str) -> None:
        with Session(engine) as session:
            _write(session)
            session.commit()

    timed(count, one)


@app.task(name="waits", acks_late=True, pgbeat={})
def waits(number: int) -> None:
    """Waits for the event of its number, whose value is when it was emitted."""
    noted(0.0)
    noted(pgbeat.wait_for(f"event-{number}"))


@app.task(name="sleeps", acks_late=True, pgbeat={"lane": LANE})
def sleeps() -> None:
    """Sleeps."""
    noted(0.0)
    pgbeat.sleep(LONG)


def start(task: str, number: int) -> None:
    """Starts a task."""
    pgbeat.submit(task, number)


def emit(key: str, value: Any) -> None:
    """Emits an event."""
    pgbeat.emit(key, value)


def sleepers(count: int) -> None:
    """Submits so many jobs that sleep."""
    pgbeat.submit_many(sleeps.s() for _ in range(count))


def idle() -> dict[str, float]:
    """Returns how long a pass of the beat takes that has nothing to do."""
    scheduler = Service(app, scheduler_cls="pgbeat.Scheduler").scheduler
    times = []
    for _ in range(310):
        began = time.perf_counter()
        scheduler.run_due()
        times.append(1000 * (time.perf_counter() - began))
    scheduler.close()
    return {"idle_ms": statistics.median(times[10:])}
