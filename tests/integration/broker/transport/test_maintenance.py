"""The share of maintenance that each consumer does for all."""

import random
import time

from sqlalchemy import text

from pgbeat.broker.transport.consuming import consumers
from pgbeat.broker.transport.consuming.maintenance import BrokerMaintenance, MadeAvailable
from pgbeat.broker.transport.options import Options
from pgbeat.database import connections
from tests.support.broker_sessions import Sessions, later, payloads, put


def test_one_does_it_at_a_time(opened: Sessions) -> None:
    """The second must not lock the rows, which would hide them from notified consumers."""
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
    maintenance = BrokerMaintenance(opened.open(), Options(), 0)
    with connections.transaction(watcher):
        assert consumers.try_maintenance_lock(watcher)
        assert maintenance.run(time.monotonic()) == MadeAvailable()
        assert maintenance.next_at - time.monotonic() < 0.1
        assert payloads(opened.consumer().claim("q")) == []
    assert maintenance.run(time.monotonic()) == MadeAvailable(requeued=True, promoted=True)
    assert sorted(payloads(opened.consumer().claim("q"))) == ["delayed", "its"]


def test_when_to_look_again(opened: Sessions) -> None:
    """Sooner where something is due sooner, or where few share the work."""
    random.seed(1)  # no time to prune comes first
    connection = opened.open()
    maintenance = BrokerMaintenance(connection, Options(), 1)
    began = time.monotonic()
    maintenance.run(began)
    assert began + 0.5 < maintenance.next_at < time.monotonic() + 1
    put(connection, "q", "soon", available_at=later(connection, "0.3 seconds"))
    maintenance.run(time.monotonic())
    assert maintenance.next_at - time.monotonic() < 0.3


def test_claims_of_unknown_consumers_are_swept_up(opened: Sessions) -> None:
    watcher, lost = opened.open(), opened.consumer()
    put(watcher, "q", "m")
    lost.claim("q")
    watcher.execute(text("DELETE FROM pgbeat.consumers"))
    maintenance = BrokerMaintenance(opened.open(), Options(), 0)
    now = time.monotonic()
    assert maintenance.run(now + 30).requeued
    assert not maintenance.run(now + 30).requeued
    assert payloads(opened.consumer().claim("q")) == ["m"]
