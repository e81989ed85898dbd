"""Results elsewhere, and values and chords that can't be: one clear error, nothing else is lost."""

import json

import psycopg
import pytest
from celery import chord, group
from celery.exceptions import ChordError
from kombu.exceptions import EncodeError

from pgbeat.config import postgres_url
from pgbeat.database.migrations import migrate
from tests.acceptance.results.conftest import Client, Workers
from tests.support.processes import until

ELSEWHERE = "The transaction that ends a chord or a chain does not publish what follows"


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_results_in_another_database_than_the_broker(
    workers: Workers, client: Client, empty_database: str, pool: str
) -> None:
    """All works but the transaction that both share, and the worker says so once."""
    migrate.upgrade(postgres_url(empty_database))
    url = f"pgbeat+{empty_database}"
    client.app.conf.result_backend = url
    worker = workers.start(
        "-P", pool, "-c", "2", TESTS_SETTINGS=json.dumps({"result_backend": url})
    )
    assert group(client.add(n, n) for n in range(5))().get(timeout=30) == [0, 2, 4, 6, 8]
    for n in range(4):
        members = [client.add(n, k) for k in range(5)]
        assert chord(members, client.body())().get(timeout=30) == [n + k for k in range(5)]
    failed = chord([client.fail()], client.body())()
    with pytest.raises(Exception, match="it fails"):
        failed.get(timeout=30)
    assert len(workers.journal()) == 4
    assert worker.output.count(ELSEWHERE) == 1
    with psycopg.connect(empty_database) as connection:
        ended = connection.execute("SELECT count(*) FROM pgbeat.chords WHERE ended")
        assert ended.fetchone() == (5,)


def test_a_result_that_cannot_be_serialized(workers: Workers, client: Client) -> None:
    """The task fails, and so does its chord; what other members returned is kept."""
    worker = workers.start("-P", "prefork", "-c", "2")
    lone = client.odd().delay()
    with pytest.raises(EncodeError, match="object is not JSON serializable"):
        lone.get(timeout=30)
    assert lone.state == "FAILURE"
    failed = chord([client.add(1, 1), client.odd()], client.body())()
    # Of the body, or of the parent, which `get` looks at too.
    with pytest.raises((ChordError, EncodeError), match="is not JSON serializable"):
        failed.get(timeout=30)
    assert isinstance(until(lambda: failed.result), ChordError)
    assert failed.parent.results[0].get(timeout=10) == 2
    assert failed.parent.results[1].state == "FAILURE"
    assert workers.journal() == []
    # Of the chord; Celery itself reports the tasks.
    assert worker.output.count(f"Chord {failed.parent.id}: ") == 1


def test_a_body_that_cannot_be_published(workers: Workers, client: Client) -> None:
    worker = workers.start("-P", "prefork", "-c", "2")
    body = client.body(serializer="nosuch").on_error(client.errback())
    failed = chord([client.add(1, 1), client.add(2, 2)], body)()
    with pytest.raises(ChordError, match=r"Callback error: .*nosuch"):
        failed.get(timeout=30)
    assert [each.get(timeout=10) for each in failed.parent.results] == [2, 4]
    assert worker.output.count(f"Chord {failed.parent.id}: Callback error") == 1
    until(lambda: f"errback {failed.id} ChordError" in workers.journal())


def test_a_body_that_no_worker_knows_is_said_once(workers: Workers, client: Client) -> None:
    worker = workers.start(PGBEAT_DEPLOY_WINDOW="0")
    failed = chord([client.add(1, 1)], client.unknown())()
    with pytest.raises(Exception, match=r"results\.unknown"):
        failed.get(timeout=30)
    assert failed.parent.results[0].get(timeout=10) == 2
    worker.says("Received unregistered task of type 'results.unknown'")
    assert worker.output.count("Received unregistered task of type 'results.unknown'") == 1
