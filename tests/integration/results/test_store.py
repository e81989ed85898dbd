"""The connection that the threads of a process share."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from celery import Celery
from celery.app.task import Context

from pgbeat.results.backend import ResultBackend
from tests.support.processes import until
from tests.support.rows import Sql
from tests.support.threads import WAITS
from tests.support.transport_workers import transport_url


@pytest.fixture
def backend(database: str) -> Iterator[ResultBackend]:
    url = transport_url(database)
    with Celery("store", broker=url, backend=url, set_as_current=False) as app:
        assert isinstance(app.backend, ResultBackend)
        yield app.backend


@pytest.mark.parametrize("members", [1, 12])
def test_a_thread_that_waits_for_a_lock_keeps_no_other_waiting(
    backend: ResultBackend, database: str, sql: Sql, members: int
) -> None:
    """Members of a chord that an application has locked, as by a cancel that is not committed."""

    def return_part(number: int) -> None:
        request = Context(
            id=f"m{number}", group="c1", group_index=number, chord={"task": "body"}, task="member"
        )
        backend.mark_as_done(request.id, number, request)

    backend.set_chord_size("c1", members + 1)
    with psycopg.connect(database) as held, ThreadPoolExecutor(members + 1) as pool:
        try:
            held.execute("SELECT FROM pgbeat.chords FOR UPDATE")
            parts = [pool.submit(return_part, number) for number in range(members)]
            until(lambda: sql(WAITS), what="one waits")
            pool.submit(backend.mark_as_done, "other", 1).result(5)
            assert not any(part.done() for part in parts)
        finally:
            held.rollback()
        for part in parts:
            part.result(30)
    assert sql("SELECT done FROM pgbeat.chords") == [(members,)]
    assert sql("SELECT count(*) FROM pgbeat.results WHERE status = 'SUCCESS'") == [(members + 1,)]
