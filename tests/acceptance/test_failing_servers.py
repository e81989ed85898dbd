"""Beats, workers of every pool and a client outlive a server that hangs, or refuses to write."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import pgbeat
from tests.chaos import app as chaos_app
from tests.chaos import load, site
from tests.chaos.load import UNREACHABLE, Load
from tests.chaos.site import Site
from tests.support.failing_servers import frozen, read_only
from tests.support.processes import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="pgbouncer is not installed"),
]
_TICKS = "SELECT count(*) FROM pgbeat.ticks WHERE outcome = 'launched'"
_BUSY = """
    SELECT DISTINCT split_part(worker, '.', 1) FROM pgbeat.executions
     WHERE started_at > %s AND state = 'completed'
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Site]:
    """Three beats and six workers at work, two of them behind a pooler."""
    with site.opened(tmp_path) as place:
        load.prepare(place)
        yield place


def test_all_go_on_where_they_were(place: Site) -> None:
    """After a server hung, and after it refused to write."""
    Load(place, 1)
    works(place)
    for failing in (frozen, read_only):
        said = {name: len(process.output) for name, process in place.crew.items()}
        with failing(place.server):
            with pytest.raises(UNREACHABLE):
                chaos_app.plain.delay()

            def complains(name: str) -> bool:
                news = place.crew[name].output[said[name] :]  # noqa: B023
                return any(each in news for each in _LOST)

            for name in site.WORKERS:
                until(partial(complains, name), 90, name)
            # A beat that stands by needs to write nothing.
            whose = all if failing is frozen else any
            until(lambda: whose(map(complains, site.BEATS)), 90, "beats")  # noqa: B023
        works(place)
        assert [name for name, process in place.crew.items() if process.poll() is not None] == []


def works(place: Site) -> None:
    """Waits until schedules are launched and each worker runs jobs, from now on."""
    ((since, ticks),) = place.sql(f"SELECT now(), ({_TICKS})")
    until(lambda: place.sql(_TICKS)[0][0] > ticks + 20, 120, "schedules are launched")

    def all_work() -> bool:
        for _ in range(20):  # enough for those behind the pooler, who ask for some now and then
            pgbeat.submit("chaos.work", kwargs={"seconds": 0.3}, app=chaos_app.app)
        return {worker for (worker,) in place.sql(_BUSY, since)} >= set(site.WORKERS)

    until(all_work, 120, "each worker runs jobs")


#: What beats and workers say of it.
_LOST = ("Lost the database", "Connection to broker lost", "Can't record executions", "read-only")
