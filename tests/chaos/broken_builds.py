"""Builds of pgbeat that break a promise: chaos must find each, or it proves nothing.

`python -m tests.chaos --build deletes_claimed_messages` makes chaos with one.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pgbeat
from pgbeat.broker.transport.consuming.maintenance import BrokerMaintenance

#: The environment variable by which the crew's processes know the build.
VARIABLE = "CHAOS_BUILD"


@dataclass(frozen=True)
class Build:
    """What is broken, in the processes and in the database, and what must find it."""

    #: The promise that it breaks, and the faults under which it does.
    promise: str
    faults: tuple[str, ...]
    patch: Callable[[], None] = lambda: None
    sql: str = ""


def _forget_the_dead() -> None:
    for method in ("_release_dead", "_sweep"):
        setattr(BrokerMaintenance, method, lambda *of: False)


def _finish_apart() -> None:
    """Commits the rows some time before the task's end."""
    together: Any = pgbeat.finish

    @contextmanager
    def finish(session: Any) -> Iterator[Any]:
        yield session
        session.commit()
        time.sleep(0.3)
        with together(session):
            session.connection()

    pgbeat.finish = finish  # type: ignore[assignment]


def _publish_apart() -> None:
    pgbeat.in_transaction = lambda *of, **options: None  # type: ignore[assignment]


_TRIGGER = """
CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {} END';
CREATE TRIGGER broken {} FOR EACH ROW {} EXECUTE FUNCTION broken();
"""
BUILDS = {
    "forgets_the_dead": Build("things don't finish", ("kill_worker",), _forget_the_dead),
    "finishes_apart": Build(
        "a completed job whose row is not there once, or another's that is",
        ("kill_child", "cut_sessions"),
        _finish_apart,
    ),
    "publishes_apart": Build(
        "a task that was rolled back and ran", ("cancel_statement",), _publish_apart
    ),
    "deletes_claimed_messages": Build(
        "a committed task that never ran",
        ("kill_worker", "stop_worker"),
        sql=_TRIGGER.format(
            "DELETE FROM kombu_message WHERE id = NEW.id; RETURN NULL;",
            "AFTER UPDATE ON kombu_message",
            "WHEN (NEW.claimed_by IS NOT NULL AND NEW.job_id IS NULL)",
        ),
    ),
    "forgets_missed_times": Build(
        "a due time that no tick accounts for",
        ("freeze_beat", "kill_beat", "restart_server"),
        sql=_TRIGGER.format("NEW.missed = 0; RETURN NEW;", "BEFORE INSERT ON pgbeat.ticks", ""),
    ),
}
