"""Lanes, their slots and their lines."""

from collections.abc import Iterable

from pgbeat.jobs.lanes.model import Lane, LaneUsage
from pgbeat.jobs.lanes.occupancy import InLine, SlotHolder
from pgbeat.views import View


def lane(row: Lane) -> View:
    """Returns a lane, with its rates in words."""
    return row._asdict() | {"rate": row.rate, "temporary_rate": row.temporary_rate}


def usage(row: LaneUsage) -> View:
    """Returns a lane with its numbers of jobs."""
    figures = row._asdict()
    return lane(figures.pop("lane")) | figures


def detail(row: LaneUsage, holders: Iterable[SlotHolder], line: Iterable[InLine]) -> View:
    """Returns a lane with its slots and the beginning of its line."""
    return usage(row) | {
        "slots": [holder._asdict() for holder in holders],
        "line": [{"place": place} | job._asdict() for place, job in enumerate(line, 1)],
    }
