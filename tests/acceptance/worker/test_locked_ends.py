"""Ends of tasks that wait for an application's transaction, in pools of threads."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.policy_workers import PolicyWorkers
from tests.support.processes import until
from tests.support.rows import Sql
from tests.support.threads import WAITS

POLICIES = {"policies.late_tries": {"max_attempts": 2, "retry_base": 0.1}}


class Site(PolicyWorkers):
    """Workers, and their client."""

    policies = POLICIES


@pytest.fixture
def site(database: str, sql: Sql, tmp_path: Path) -> Iterator[Site]:
    with Site.at_work(database, tmp_path, sql) as site:
        yield site


def test_an_end_that_waits_keeps_no_other_waiting(site: Site, database: str, sql: Sql) -> None:
    """A retry and its record are one transaction, which needs the row of the job."""
    site.start("-P", "threads", "-c", "2")
    locked = site.task("late_tries", "by policy").delay()
    until(lambda: (site.folder / "first-by policy").exists(), 30, "it runs")
    assert site.task("joined", [0]).delay().get(timeout=30) == [0]
    with psycopg.connect(database) as held:
        held.execute("SELECT FROM pgbeat.unfinished_jobs WHERE id = %s FOR UPDATE", [locked.id])
        (site.folder / "gate-retry-by policy").touch()
        until(lambda: sql(WAITS), what="its end waits")
        assert site.task("joined", [1]).delay().get(timeout=5) == [1]
        assert locked.state == "PENDING"
    assert locked.get(timeout=60) == "done"
