"""`pgbeat tasks`: how often each task ran."""

import click

from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.options import option
from pgbeat.cli.terminal.printing import Cell, counted
from pgbeat.cli.terminal.target import Target, on_target
from pgbeat.config import spelling
from pgbeat.monitoring.rollups import tasks
from pgbeat.monitoring.rollups.tasks import TaskUsage


@click.command("tasks")
@click.argument("search", required=False, default="")
@option("--limit", click.IntRange(1, 10_000), "How many, the most frequent first.", default=50)
@on_target
def tasks_command(target: Target, search: str, limit: int) -> None:
    """Show how often each task ran in 24 hours, and how long it took.

    It also says how many ran untracked. With SEARCH, only tasks with that in their name. The
    leading beat counts jobs a minute after they ended.
    """
    with target.transaction() as connection:
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
