"""Chords whose members are lost, take too long, are retried or are delivered again."""

from typing import Any

import pytest
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import chain, chord, group
from celery.exceptions import ChordError

from tests.acceptance.results.conftest import Client, Workers
from tests.support.processes import until
from tests.support.rows import Sql


def assert_failed(workers: Workers, chord: Any, cause: type[Exception]) -> None:
    """Checks that the body failed because of a member, that its errback ran, and it did not."""
    with pytest.raises((ChordError, cause)):
        chord.get(timeout=60)
    assert isinstance(until(lambda: chord.result), ChordError)
    assert cause.__name__ in str(chord.result)
    until(lambda: f"errback {chord.id} ChordError" in workers.journal())
    # It is called once the failure is there for everybody.
    until(lambda: f"{chord.id} is FAILURE" in workers.journal())
    assert len(workers.journal()) == 2


@pytest.mark.parametrize(
    ("task", "cause"),
    [("die", WorkerLostError), pytest.param("sleep", TimeLimitExceeded, marks=pytest.mark.slow)],
)
def test_a_member_whose_process_is_lost(
    workers: Workers, client: Client, sql: Sql, task: str, cause: type[Exception]
) -> None:
    workers.start("-P", "prefork", "-c", "2")
    body = client.body().on_error(client.errback())
    member = client.die() if task == "die" else client.sleep(60, time_limit=1)
    failed = chord([client.add(1, 1), member], body)()
    assert_failed(workers, failed, cause)
    assert failed.parent.results[0].get(timeout=10) == 2
    assert sql("SELECT ended FROM pgbeat.chords") == [(True,)]


def bodies(client: Client, kind: str) -> Any:
    """Returns the body of an inner chord."""
    kinds = {
        "task": client.body(),
        "chain": chain(client.body(), client.body()),
        "group": group(client.body(), client.body()),
        "chord": chord([client.body(), client.body()], client.body()),
    }
    return kinds[kind]


@pytest.mark.parametrize(
    "kind",
    ["task", *(pytest.param(each, marks=pytest.mark.slow) for each in ("chain", "group", "chord"))],
)
def test_an_inner_chord_that_fails(workers: Workers, client: Client, kind: str) -> None:
    """It fails the outer chord, which does not wait for ever for the inner one's body."""
    workers.start("-P", "prefork", "-c", "2")
    inner = chord([client.retried(1), client.fail()], bodies(client, kind))
    outer = client.body().on_error(client.errback())
    failed = chord([client.add(1, 1), inner], outer)()
    with pytest.raises((ChordError, ValueError), match="it fails"):
        failed.get(timeout=60)
    assert isinstance(until(lambda: failed.result), ChordError)
    until(lambda: f"errback {failed.id} ChordError" in workers.journal())


def test_retries_in_nested_headers(workers: Workers, client: Client) -> None:
    workers.start("-P", "prefork", "-c", "2")
    inner = chord([client.retried(2), client.add(2, 2)], client.body())
    # Celery reverses the members of a group in a header.
    members = [group(client.retried(1), client.retried(1)), client.add(1, 1), inner]
    assert chord(members, client.body())().get(timeout=60) == [1, 1, 2, [2, 4]]
