"""How the page of `pgbeat top` is laid out."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgbeat.broker.queues import QueueSummary
from pgbeat.cli.operations import top_page
from pgbeat.cli.operations.top_page import Snapshot, share
from pgbeat.jobs.lanes.model import Lane, LaneUsage
from pgbeat.jobs.rows.model import Job
from pgbeat.monitoring.beats import Status
from pgbeat.monitoring.runbook import LATE, Trouble
from pgbeat.monitoring.worker_usage import WorkerUsage
from pgbeat.schedules.model import Backlog

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
TASK = "warehouse.tasks.reconciliation.reconcile_inventory"


def blank(kind: Any, **values: Any) -> Any:
    return kind(**{**dict.fromkeys(kind._fields), **values})


def busy(jobs: int = 30, queues: int = 5, workers: int = 3) -> Snapshot:
    since = NOW - timedelta(minutes=3)
    running = [
        blank(
            Job,
            id=f"{number:08x}-0000-4000-8000-000000000000",
            task=TASK,
            state="running",
            worker=f"celery@w{number % 3}.eu.example.com",
            started_at=since,
            created_at=since,
        )
        for number in range(jobs)
    ]
    trouble = Trouble("no beat leads: " + "start one " * 9, LATE)
    status = Status(None, [], blank(Backlog), None, [trouble])
    return Snapshot(
        NOW,
        status,
        [
            WorkerUsage(f"celery@w{n}.eu.example.com", n, "prefork", 4, since, None, 2)
            for n in range(workers)
        ],
        {"pending": 12_345, "running": jobs, "failed": 1},
        running,
        {},
        [LaneUsage(blank(Lane, name="partner-api-rate-limited", max_running=2), 2, 7, since)],
        [
            QueueSummary(f"queue-number-{n}", 3, 0, 0, 0, 0, timedelta(60), None, False, None)
            for n in range(queues)
        ],
    )


def drawn(found: Snapshot, width: int, height: int) -> list[str]:
    return [line.plain for line in top_page.page(found, width, height)]


@pytest.mark.parametrize("width", [60, 80, 100, 119, 120, 160, 250])
@pytest.mark.parametrize("height", [10, 24, 60])
def test_it_fits_the_terminal(width: int, height: int) -> None:
    found = drawn(busy(), width, height)
    assert len(found) <= height
    assert max(map(len, found)) <= width


def test_at_80_by_24_everything_is_there() -> None:
    found = drawn(busy(), 80, 24)
    titles = [line.split()[0] for line in found if line[:7] in TITLES]
    assert titles == ["Running", "Lanes", "Queues", "Workers"]
    assert [line for line in found if line.startswith("celery@w0 ")], "without the same domain"
    [more] = [line for line in found if line.startswith("… ")]  # the header has no room for it
    shown = sum(line.startswith("0000") for line in found)
    assert more == f"… {30 - shown} more"
    assert [line for line in found if line.startswith("Queues") and line.endswith("… 1 more")]
    assert any("warehouse.tasks" in line and "reconcile_inventory" in line for line in found)


TITLES = ("Running", "Lanes  ", "Queues ", "Workers")


def test_on_a_wide_terminal_the_jobs_have_the_rest_beside_them() -> None:
    found = drawn(busy(), 160, 30)
    [first] = [line for line in found if line.startswith("Running")]
    assert "Lanes" in first
    assert not [line for line in found if line.startswith(TITLES[1:])]
    assert TASK in drawn(busy(), 200, 30)[6]


def test_blocks_without_rows_are_left_out() -> None:
    found = drawn(busy(jobs=0, queues=0), 160, 30)
    assert [line.split()[0] for line in found if line[:7] in TITLES] == ["Lanes", "Workers"]
    nothing = busy(jobs=0, queues=0, workers=0)._replace(lanes=[], counts={})
    assert drawn(nothing, 80, 24)[-1] == top_page.NOTHING


def test_each_gets_what_it_wants_or_as_much_as_the_others() -> None:
    assert share([1, 30, 4], 12) == [1, 7, 4]
    assert share([1, 2], 100) == [1, 2]
    assert share([5, 5, 5], 0) == [1, 1, 1]
    assert share([5, 5], 3) == [2, 1]
