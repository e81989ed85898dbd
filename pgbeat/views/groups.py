"""Groups of jobs."""

from collections.abc import Iterable

from pgbeat.jobs.groups.model import Group, MemberCounts
from pgbeat.jobs.rows.model import Job
from pgbeat.views import View, jobs


def group(row: Group, progress: MemberCounts) -> View:
    """Returns a group with its progress."""
    return row._asdict() | {"progress": progress._asdict() | {"percent": progress.percent}}


def detail(row: Group, progress: MemberCounts, members: Iterable[Job]) -> View:
    """Returns a group with its jobs, already masked."""
    return group(row, progress) | {"jobs": [jobs.job(member) for member in members]}
