"""Lists are read from a standby that keeps up, and from the primary while it doesn't."""

import json
import logging
from collections.abc import Iterator
from typing import NamedTuple

import psycopg
import pytest

from pgbeat.config import postgres_url
from pgbeat.database.migrations import migrate
from pgbeat.monitoring import replica
from pgbeat.testing.databases import TemporaryServer, in_database
from tests.support.command_line import run
from tests.support.failing_servers import standby
from tests.support.jobs import make_app
from tests.support.processes import until
from tests.support.scrapes import read as samples
from tests.support.scrapes import value
from tests.support.tcp_proxy import Proxy
from tests.support.web import Web, opened

LISTS = "/admin/scheduled-jobs"
BEHIND = "Pgbeat-Read-Lag"


class Pair(NamedTuple):
    """A primary, its standby, and the network between them."""

    primary: TemporaryServer
    standby: TemporaryServer
    network: Proxy

    @property
    def url(self) -> str:
        """The database on the primary."""
        return in_database(self.primary.dsn, "shop")

    @property
    def read_url(self) -> str:
        """The database on the standby."""
        return in_database(self.standby.dsn, "shop")

    def write(self, statement: str) -> None:
        """Runs a statement on the primary."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)

    def add(self, name: str) -> None:
        self.write(
            "INSERT INTO pgbeat.schedules (name, task, every) "
            f"VALUES ('{name}', 'jobs.add', interval '1 hour')"
        )

    def await_replay(self) -> None:
        """Waits until the standby has what the primary has written."""
        with psycopg.connect(self.url, autocommit=True) as primary:
            written = primary.execute("SELECT pg_current_wal_lsn()").fetchone()
        with psycopg.connect(self.read_url, autocommit=True) as copy:
            query = b"SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
            until(lambda: copy.execute(query, written).fetchone() == (True,))

    def replay(self, verb: str) -> None:
        """Has the standby `pause` or `resume` the replay of what it gets."""
        with psycopg.connect(self.standby.dsn, autocommit=True) as connection:
            connection.execute(f"SELECT pg_wal_replay_{verb}()")


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    primary = TemporaryServer()
    with psycopg.connect(primary.dsn, autocommit=True) as admin:
        admin.execute("CREATE DATABASE shop")
    migrate.upgrade(postgres_url(in_database(primary.dsn, "shop")))
    with standby(primary) as (copy, network):
        yield Pair(primary, copy, network)
    primary.remove()


@pytest.fixture
def lag() -> float:
    """How many seconds the standby may be behind."""
    return 2


@pytest.fixture
def web(pair: Pair, lag: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setattr(replica, "_AGAIN", 0.1)
    pair.write("TRUNCATE pgbeat.schedules CASCADE")
    with opened(make_app(pair.url), read_url=pair.read_url, read_lag=lag) as web:
        until(lambda: behind(web) == 0)
        yield web


def names(web: Web) -> list[str]:
    """The schedules that a list has."""
    return [row["name"] for row in web.admin.get(LISTS).json()["schedules"]]


def behind(web: Web) -> float | None:
    """How many seconds the server of a list was behind, if it was the standby."""
    lag = web.admin.get(LISTS).headers.get(BEHIND)
    return None if lag is None else float(lag)


def lag_in_metrics(web: Web) -> float | None:
    return value(samples(web.admin.get("/metrics").content), "pgbeat_read_lag_seconds")


@pytest.mark.parametrize("lag", [600])
def test_lists_are_the_standbys_and_single_things_the_primarys(pair: Pair, web: Web) -> None:
    pair.add("seen")
    until(lambda: names(web) == ["seen"])
    pair.replay("pause")
    try:
        pair.add("unseen")
        assert names(web) == ["seen"]
        assert (behind(web) or 0) > 0
        assert web.admin.get(f"{LISTS}/unseen").status_code == 200
        assert "unseen" not in web.admin.get("/timeline").text
        assert 0 < (lag_in_metrics(web) or 0) < 600
        assert 'pgbeat_schedules{state="active"} 1.0' in web.admin.get("/metrics").text
        browser = web.admins_browser
        assert "read from a replica" in browser.get("/console/overview").text
        assert "unseen" not in browser.get("/console/schedules").text
        browser.post("/console/schedules", data={"do": "pause"})
        assert "unseen" in browser.get("/console/schedules").text, "the page after a change"
    finally:
        pair.replay("resume")


def test_a_standby_that_is_too_far_behind_is_not_read(
    pair: Pair, web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pgbeat")
    pair.replay("pause")
    try:
        pair.add("late")
        until(lambda: names(web) == ["late"])
        assert behind(web) is None
        assert (lag_in_metrics(web) or 0) > 2
        troubles = web.admin.get("/scheduler/status").json()["troubles"]
        assert "pgbeat_read_lag is 2 s" in troubles[-1]
        assert "pgbeat_read_lag is 2 s" in web.admins_browser.get("/console/overview").text
    finally:
        pair.replay("resume")
    until(lambda: behind(web) == 0)
    said = [record.getMessage() for record in caplog.records if "Lists are" in record.getMessage()]
    assert len(said) == 2, said


def test_a_standby_that_gets_nothing_is_too_far_behind(pair: Pair, web: Web) -> None:
    """It has replayed all that it has, so it can't know by itself."""
    pair.network.cut()
    try:
        pair.add("cut")
        until(lambda: names(web) == ["cut"])
        assert behind(web) is None
    finally:
        pair.network.mend()
    until(lambda: behind(web) == 0)


def test_a_standby_that_is_gone_is_not_read(pair: Pair, web: Web) -> None:
    pair.standby.stop()
    try:
        pair.add("alone")
        # The pages of the moment fail whose connection it ended.
        until(lambda: web.admin.get(LISTS).status_code == 200)
        assert names(web) == ["alone"]
        assert lag_in_metrics(web) == float("inf")
    finally:
        pair.standby.start()
    until(lambda: behind(web) == 0)


def test_commands_read_from_the_standby(pair: Pair) -> None:
    pair.write("TRUNCATE pgbeat.schedules CASCADE")
    pair.await_replay()
    env = {"PGBEAT_URL": pair.url, "PGBEAT_READ_URL": pair.read_url, "PGBEAT_READ_LAG": "600"}
    pair.replay("pause")
    try:
        pair.add("unseen")

        def listed(url: str | None) -> list[str]:
            result = run(url, "list", "--json", env=env)
            return [row["name"] for row in json.loads(result.stdout)]

        assert listed(None) == []
        assert listed(f"{pair.url}&connect_timeout=9") == ["unseen"], "a database that is named"
    finally:
        pair.replay("resume")


def test_doctor_compares_the_servers(pair: Pair, own_server: TemporaryServer) -> None:
    def check(url: str) -> tuple[str, str]:
        env = {"PGBEAT_URL": pair.url, "PGBEAT_READ_URL": url}
        rows = json.loads(run(None, "doctor", "--json", env=env).stdout)["checks"]
        [row] = [row for row in rows if row["check"] == "replica"]
        return row["result"], row["detail"]

    until(lambda: check(pair.read_url)[0] == "ok")
    result, detail = check(own_server.dsn)
    assert (result, "doesn't follow the primary" in detail) == ("warn", True)
    with standby(own_server) as (other, _):
        result, detail = check(other.dsn)
        assert (result, "no standby of this server" in detail) == ("fail", True)
