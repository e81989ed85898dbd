"""Dead letters: found, requeued, dropped."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy import Connection, text

from pgbeat.broker import dead_letters, queues
from tests.support.broker_sessions import Sessions, depths, payloads, put, rows
from tests.support.threads import together


def kill(opened: Sessions, queue: str, *names: str, priority: int = 0) -> None:
    """Makes dead letters, one after another."""
    consumer = opened.consumer()
    for name in names:
        put(consumer.connection, queue, name, priority=priority)
        (found,) = consumer.claim(queue)
        consumer.reject([found.id])


def names(found: list[dead_letters.DeadLetter]) -> list[str]:
    return [letter.payload for letter in found]


def test_the_newest_are_found_first(opened: Sessions, connection: Connection) -> None:
    kill(opened, "q", "1", "2")
    kill(opened, "r", "3")
    kill(opened, "q", "4")
    everything = dead_letters.find(connection)
    assert names(everything) == ["4", "3", "2", "1"]
    assert {(d.queue, d.reason, d.deliveries) for d in everything} == {
        ("q", "rejected", 1),
        ("r", "rejected", 1),
    }
    assert names(dead_letters.find(connection, queue="q", limit=2)) == ["4", "2"]
    ids = [letter.id for letter in everything[1:3]]
    assert names(dead_letters.find(connection, ids=ids)) == ["3", "2"]
    assert names(dead_letters.find(connection, ids=ids, queue="r")) == ["3"]
    assert dead_letters.find(connection, ids=[]) == []


def test_a_task_is_known_by_its_name(opened: Sessions, connection: Connection) -> None:
    whole = {"body": "", "headers": {"task": "tests.add", "id": "abc"}, "properties": {}}
    odd = ["{}", "[]", "null", "no JSON", '{"headers": null}', '{"headers": {"task": 1}}']
    odd += ['{"headers": [1]}', '{"headers": {"task": "\\ud800"}}', "[" * 2000 + "]" * 2000]
    kill(opened, "q", json.dumps(whole), *odd)
    found = [(d.task, d.task_id) for d in dead_letters.find(connection)]
    assert found == [(None, None)] * len(odd) + [("tests.add", "abc")]


def test_requeued_letters_start_over(opened: Sessions, connection: Connection) -> None:
    """In the order of their deaths, as of now, uncounted, and said to be delivered again."""
    kill(opened, "q", "1", "2", priority=3)
    kill(opened, "r", "3")
    [(died,)] = rows(connection, "SELECT max(died_at) FROM kombu_message_dead")
    assert dead_letters.requeue(connection, queue="q") == 2
    assert depths(connection) == {"q": 2, "r": 0}
    ages = rows(connection, "SELECT enqueued_at FROM kombu_message")
    assert all(enqueued_at > died for (enqueued_at,) in ages)
    found = opened.consumer().claim("q")
    assert payloads(found) == ["1", "2"]
    assert {(d.priority, d.deliveries, d.redelivered) for d in found} == {(3, 1, True)}
    assert names(dead_letters.find(connection)) == ["3"]
    assert dead_letters.requeue(connection, ids=[]) == 0
    assert dead_letters.requeue(connection) == 1
    assert depths(connection) == {"q": 0, "r": 1}


@pytest.mark.parametrize("way", ["rejected", "delivered in vain"])
def test_a_letter_is_kept_whatever_ids_there_are(
    opened: Sessions, connection: Connection, way: str
) -> None:
    """Messages begin at 1 again after their sequence was reset, by a restore for example."""
    kill(opened, "q", "1", "2")
    connection.execute(text("SELECT setval('message_id_sequence', 1, false)"))
    if way == "rejected":
        kill(opened, "q", "3", "4", "5")
    else:
        consumer = opened.consumer()
        for name in ("3", "4", "5"):
            put(consumer.connection, "q", name)
        ids = [found.id for found in consumer.claim("q")]
        assert consumer.requeue(ids, limit=1) == []
    found = dead_letters.find(connection)
    assert sorted(names(found)) == ["1", "2", "3", "4", "5"]
    assert len({letter.id for letter in found}) == 5
    assert depths(connection) == {"q": 0}


def test_a_letter_whose_queue_is_gone(opened: Sessions, connection: Connection) -> None:
    """Its queue is created again; if its queue is unknown, the letter stays."""
    kill(opened, "gone", "1")
    queues.delete(connection, "gone")
    consumer = opened.consumer()
    put(connection, "unknown", "2")
    (found,) = consumer.claim("unknown")
    connection.execute(text("DELETE FROM kombu_queue WHERE name = 'unknown'"))
    consumer.reject([found.id])
    assert dead_letters.requeue(connection) == 1
    assert depths(connection) == {"gone": 1}
    (left,) = dead_letters.find(connection)
    assert (left.payload, left.queue) == ("2", "")


def test_letters_are_dropped_by_queue_id_and_age(opened: Sessions, connection: Connection) -> None:
    kill(opened, "q", "old", "new", "other")
    kill(opened, "r", "r")
    connection.execute(
        text(
            "UPDATE kombu_message_dead SET died_at = died_at - interval '1 day' "
            "WHERE payload IN ('old', 'r')"
        )
    )
    assert dead_letters.drop(connection, queue="q", older_than=86_000) == 1
    assert set(names(dead_letters.find(connection))) == {"new", "other", "r"}
    (other,) = (d for d in dead_letters.find(connection) if d.payload == "other")
    assert dead_letters.drop(connection, ids=[other.id]) == 1
    assert dead_letters.drop(connection, older_than=2 * 86_400) == 0
    assert dead_letters.drop(connection, queue="r") == 1
    assert dead_letters.drop(connection) == 1
    assert dead_letters.find(connection) == []


def test_chosen_letters_are_locked(opened: Sessions, connection: Connection) -> None:
    kill(opened, "q", "1", "2")
    first, second = reversed(dead_letters.find(connection))
    chooser = opened.open()
    chooser.execute(text("BEGIN"))
    assert dead_letters.choose(chooser, ids=[first.id]) == {first.id: "q"}
    with ThreadPoolExecutor(1) as pool:
        requeued = pool.submit(dead_letters.requeue, opened.open())
        assert dead_letters.drop(chooser, ids=[first.id]) == 1
        chooser.execute(text("COMMIT"))
        assert requeued.result() == 1
    assert dead_letters.find(connection) == []
    assert rows(connection, "SELECT payload FROM kombu_message") == [(second.payload,)]


def test_no_letter_is_requeued_twice(opened: Sessions, connection: Connection) -> None:
    kill(opened, "q", *map(str, range(30)))
    own = [opened.open() for _ in range(3)]
    requeued = together([partial(dead_letters.requeue, mine) for mine in own])
    assert sum(requeued) == 30
    assert depths(connection) == {"q": 30}
