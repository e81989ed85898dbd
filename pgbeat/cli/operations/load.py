"""`pgbeat load`, what ended over time, and `pgbeat tasks`, how often each task ran."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.options import length_option, option, since_option
from pgbeat.cli.terminal.printing import Cell, counted, span
from pgbeat.cli.terminal.target import Target, on_target
from pgbeat.config import spelling
from pgbeat.monitoring.rollups import tasks
from pgbeat.monitoring.rollups.load import Load, Point, load
from pgbeat.monitoring.rollups.tasks import TaskUsage

_BARS = "▁▂▃▄▅▆▇█"
#: Bars of a line, at most.
_WIDTH = 45


@click.command("load")
@option("--task", "NAME", "Only jobs of this task.")
@option("--lane", "NAME", "Only jobs of this lane.")
@option("--queue", "NAME", "Only jobs that go to this queue.")
@since_option("1h")
@length_option(
    "--step", text="Length of a step, whole minutes; further back than a day, whole hours."
)
@on_target
def load_command(target: Target, **options: Any) -> None:
    """Show what ended over time, how long it waited and ran, and how much waited.

    All jobs, or those of a task, a lane or a queue. The leading beat counts a minute when it is
    over.
    """
    with target.listing() as (connection, _):
        result = load(connection, target.namespace, **options)
    what = f"{result.kind} {result.name}" if result.name else "all jobs"
    printing.show_facts(
        f"Load of {what}, {_clock(result.since)} to {_clock(result.until)} UTC",
        *[(label, _line(result, of, shown)) for label, of, shown in _LINES],
        view=result,
    )


def _clock(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"


def _seconds(value: float | None) -> str:
    return "" if value is None else span(timedelta(seconds=value), units=1)


#: Each line: its label, its value at a point, and its total in words.
_LINES: tuple[tuple[str, Callable[[Point], float | None], Callable[[Point], str]], ...] = (
    ("completed", lambda p: p.completed, lambda p: f"{p.completed:,}"),
    ("failed", lambda p: p.failed, lambda p: f"{p.failed:,}"),
    ("cancelled", lambda p: p.cancelled, lambda p: f"{p.cancelled:,}"),
    ("skipped", lambda p: p.skipped, lambda p: f"{p.skipped:,}"),
    ("running p50", lambda p: p.running_p50, lambda p: _seconds(p.running_p50)),
    ("running p95", lambda p: p.running_p95, lambda p: _seconds(p.running_p95)),
    ("waiting p50", lambda p: p.waiting_p50, lambda p: _seconds(p.waiting_p50)),
    ("waiting p95", lambda p: p.waiting_p95, lambda p: _seconds(p.waiting_p95)),
    ("depth", lambda p: p.depth, lambda p: f"at most {p.depth:,}"),
)


def _line(
    result: Load, of: Callable[[Point], float | None], shown: Callable[[Point], str]
) -> str | None:
    """Returns the bars of a value, then its total in words; `None` without a total."""
    if not of(result.total):
        return None
    return f"{sparkline([of(point) or 0 for point in result.points])}  {shown(result.total)}"


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """Returns a bar for each value, or for the greatest of several if there are too many."""
    size = -(-len(values) // width) or 1
    greatest = [max(values[start : start + size]) for start in range(0, len(values), size)]
    top = max(greatest, default=0) or 1
    return "".join(" " if not v else _BARS[min(7, int(v / top * 8))] for v in greatest)


@click.command("tasks")
@click.argument("search", required=False, default="")
@option("--limit", click.IntRange(1, 10_000), "How many, the most frequent first.", default=50)
@on_target
def tasks_command(target: Target, search: str, limit: int) -> None:
    """Show how often each task ran in 24 hours, and how long it took.

    It also says how many ran untracked. With SEARCH, only tasks with that in their name. The
    leading beat counts jobs a minute after they ended.
    """
    with target.listing() as (connection, _):
        usage = tasks.listing(connection, target.namespace, search=search, limit=limit)
    printing.show_listing(
        usage.rows,
        cells_of=_cells,
        names={"task"},
        none="No such task ran." if search else "No task ran in the last 24 hours.",
    )
    if usage.untracked and not printing.is_json():
        setting = spelling(target.app, "track")
        printing.note(
            f"{counted(usage.untracked, 'task')} ran untracked; set {setting} to 'all' to track "
            "them."
        )


def _cells(row: TaskUsage) -> dict[str, Cell]:
    return {
        "task": row.name or "(others)",
        "completed": row.completed,
        "failed": row.failed,
        "other": row.cancelled + row.skipped or None,
        "half took": _length(row.running_p50),
        "95% took": _length(row.running_p95),
        "untracked": row.untracked or None,
    }


def _length(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"
