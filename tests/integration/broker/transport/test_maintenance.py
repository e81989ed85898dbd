"""Chores: what consumers do for all of them, one at a time."""

import time

from sqlalchemy import text

from pgbeat.broker import consumers
from pgbeat.broker.transport.chores import Chores, Done
from pgbeat.broker.transport.options import Options
from pgbeat.database import connections
from tests.support.broker_sessions import TABLES, Sessions, later, payloads, put


def test_one_does_it_at_a_time(opened: Sessions) -> None:
    """Whoever comes second leaves the rows alone: by locking them it would hide them from those
    that were told of them."""
    watcher, one = opened.open(), opened.consumer()
    put(watcher, "q", "its", "delayed")
    assert payloads(one.claim("q", at_most=1)) == ["its"]
    watcher.execute(
        text(
            "UPDATE kombu_message SET visible = false, available_at = now() "
            "WHERE payload = 'delayed'"
        )
    )
    one.die(watcher)
    chores = Chores(opened.open(), TABLES, Options(), 0)
    with connections.transaction(watcher):
        assert consumers.take_turn(watcher, TABLES)
        assert chores.look(time.monotonic()) == Done()
        assert chores.next_at - time.monotonic() < 0.1
        assert payloads(opened.consumer().claim("q")) == []
    assert chores.look(time.monotonic()) == Done(came_back=True, came_due=True)
    assert sorted(payloads(opened.consumer().claim("q"))) == ["delayed", "its"]


def test_when_to_look_again(opened: Sessions) -> None:
    """Sooner where something is due sooner, or where few share the work."""
    connection = opened.open()
    chores = Chores(connection, TABLES, Options(), 1)
    chores.look(time.monotonic())
    assert 0.5 < chores.next_at - time.monotonic() < 1
    put(connection, "q", "soon", available_at=later(connection, "0.3 seconds"))
    chores.look(time.monotonic())
    assert chores.next_at - time.monotonic() < 0.3


def test_claims_of_unknown_consumers_are_swept_up(opened: Sessions) -> None:
    watcher, lost = opened.open(), opened.consumer()
    put(watcher, "q", "m")
    lost.claim("q")
    watcher.execute(text("DELETE FROM pgbeat.consumers"))
    chores = Chores(opened.open(), TABLES, Options(), 0)
    now = time.monotonic()
    assert chores.look(now + 30).came_back
    assert not chores.look(now + 30).came_back
    assert payloads(opened.consumer().claim("q")) == ["m"]
