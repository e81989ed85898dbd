"""An app whose tasks run in batches, with pgbeat's broker and result backend."""

import json
import os
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from time import sleep
from typing import Any

from celery import Celery
from celery.exceptions import Reject
from sqlalchemy import create_engine, text

import pgbeat
from pgbeat.config import postgres_url
from tests.support.apps.files import is_first, note, wait_for

URL = os.environ.get("TESTS_BROKER")

app = Celery("batches", broker=URL, backend=URL)
app.conf.update(
    result_expires=None,
    worker_prefetch_multiplier=1,
    **json.loads(os.environ.get("TESTS_SETTINGS", "{}")),
)

Members = Sequence[pgbeat.Member]


def _note(members: Members) -> None:
    note("batch " + " ".join(member.id for member in members))


@app.task(
    shared=False,
    name="batches.add",
    pgbeat={"batch": 3, "batch_after": "1 s", "batch_by": "kwargs.shop"},
)
def add(members: Members) -> list[int]:
    """Adds to the number of each."""
    _note(members)
    return [member.args[0] + 1 for member in members]


@app.task(shared=False, name="batches.many", pgbeat={"batch": 4, "batch_after": "1 hour"})
def many(members: Members) -> None:
    """Starts only when it is full."""
    _note(members)


@app.task(
    shared=False,
    name="batches.flaky",
    pgbeat={"batch": 3, "batch_after": "0.3 s", "max_attempts": 2, "retry_base": 0.3},
)
def flaky(members: Members) -> list[int]:
    """Fails those members, at their first attempt, whose argument says so."""
    _note(members)
    errors: dict[int, Exception] = {
        place: ValueError(member.args[0])
        for place, member in enumerate(members)
        if member.args[0] in ("always", "once" if member.attempt == 1 else "")
    }
    results = [member.attempt for member in members]
    if errors:
        raise pgbeat.Failed(errors, results)
    return results


@app.task(
    shared=False,
    name="batches.ends",
    pgbeat={"batch": 5, "batch_after": "0.3 s"},
    acks_on_failure_or_timeout=False,
)
def ends(members: Members) -> None:
    """Ends each member as its argument says."""
    _note(members)
    ways: dict[str, Exception] = {
        "skip": pgbeat.Skip("not now"),
        "snooze": pgbeat.Snooze(0.2),
        "fail": ValueError("no"),
        "reject": Reject("no", requeue=False),
    }
    raise pgbeat.Failed(
        {
            place: ways[member.args[0]]
            for place, member in enumerate(members)
            if member.args[0] in ways and is_first(member.id)
        }
    )


@app.task(shared=False, name="batches.all_fail", pgbeat={"batch": 4, "batch_after": "1 hour"})
def all_fail(members: Members) -> None:
    """Fails as a whole."""
    raise ValueError("all of them")


@app.task(
    shared=False, bind=True, name="batches.again", pgbeat={"batch": 2, "batch_after": "0.3 s"}
)
def again(self: Any, members: Members) -> None:
    """Runs again once, by Celery's own retry."""
    _note(members)
    error = ValueError("no")
    raise self.retry(exc=error, eta=datetime.now(UTC), max_retries=1)


@app.task(
    shared=False, bind=True, name="batches.later", pgbeat={"batch": 2, "batch_after": "0.3 s"}
)
def later(self: Any, members: Members) -> list[int]:
    """Runs again once, though it returns a value; by then one has failed for good."""
    _note(members)
    results = [member.attempt for member in members]
    if members[0].attempt == 1:
        self.retry(countdown=0, throw=False)
        raise pgbeat.Failed({0: ValueError("no")}, results)
    return results


@app.task(shared=False, name="batches.polls", pgbeat={"batch": 3, "batch_after": "0.5 s"})
def polls(members: Members) -> None:
    """Waits until it is cancelled, the first time."""
    _note(members)
    while len(members) == 3:
        pgbeat.progress(1)
        sleep(0.05)


@app.task(shared=False, name="batches.told")
def told(request: Any, error: Any, traceback: Any) -> None:
    """Notes the failure of a task, in the process in which it failed."""
    note(f"told {request.id}")


@app.task(shared=False, name="batches.held", pgbeat={"batch": 3, "batch_after": "0.5 s"})
def held(members: Members) -> list[str]:
    """Waits for a file, the first time."""
    note(f"held {os.getpid()} " + " ".join(member.id for member in members))
    if is_first("held"):
        wait_for("gate")
    return [member.id for member in members]


@app.task(
    shared=False,
    name="batches.poison",
    pgbeat={"batch": 8, "batch_after": "1 hour", "max_attempts": 1},
)
def poison(members: Members) -> None:
    """Kills its process if a member's argument says so."""
    _note(members)
    if any(member.args[0] for member in members):
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(shared=False, name="batches.books", pgbeat={"batch": 2, "batch_after": "1 hour"})
def books(members: Members) -> None:
    """Writes a row for each; then members fail whose argument says so, or all do."""
    with pgbeat.finish(create_engine(postgres_url(str(URL))).connect()) as connection:
        rows = [{"id": member.id} for member in members]
        connection.execute(text("INSERT INTO effects (name) VALUES (:id)"), rows)
        places = [place for place, member in enumerate(members) if member.args[0] == "fails"]
        raise pgbeat.Failed({place: ValueError("no") for place in places})


@app.task(shared=False, name="batches.total")
def total(numbers: list[int]) -> int:
    """Adds them up."""
    return sum(numbers)


@app.task(shared=False, name="batches.double")
def double(number: int) -> int:
    return number * 2
