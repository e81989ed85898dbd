"""Draws the page of `pgbeat top`: side by side on a wide terminal, below each other elsewhere."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any, NamedTuple

from rich.text import Text

from pgbeat.broker.queues import QueueSummary
from pgbeat.cli.terminal import printing, tables
from pgbeat.cli.terminal.printing import Cell, counted, span, styled
from pgbeat.jobs.lanes.model import LaneUsage
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running.executions import Execution
from pgbeat.monitoring.beats import Status
from pgbeat.monitoring.metrics import gauges
from pgbeat.monitoring.worker_usage import WorkerUsage

#: The fewest columns with lanes, queues and workers beside the running jobs …
_WIDE = 120
#: … which have this share of the columns at most; and the columns between the two.
_SHARE, _BETWEEN = 0.45, 4
#: Lines of a block beside its rows: a blank one, and the header.
_AROUND = 2


class Snapshot(NamedTuple):
    """What the page shows, as of one moment."""

    now: datetime
    beat: Status
    workers: list[WorkerUsage]
    #: Numbers of jobs by state.
    counts: dict[str, int]
    running: list[Job]
    executions: Mapping[Any, Execution]
    lanes: list[LaneUsage]
    queues: list[QueueSummary]


class Block(NamedTuple):
    """A table of the page. The first column's header is its title."""

    rows: list[dict[str, Cell]]
    #: The columns of names, and how wide they are at least before others are left out.
    names: Mapping[str, int]
    #: The columns that are left out where there is no room, the first one first.
    optional: Sequence[str]


def blocks(snapshot: Snapshot) -> list[Block]:
    """Returns the tables that have rows: running jobs, lanes, queues, workers."""
    now = snapshot.now
    all_blocks = [
        Block(
            [_running(snapshot, job) for job in snapshot.running],
            {"task": 30, "progress": 12, "worker": 16},
            ("worker", "progress"),
        ),
        Block([_lane(row, now) for row in snapshot.lanes], {"Lanes": 20}, ("for", "limit")),
        Block(
            [_queue(row) for row in snapshot.queues],
            {"Queues": 20},
            ("claimed", "delayed", "oldest", "dead"),
        ),
        Block([_worker(row, now) for row in snapshot.workers], {"Workers": 20}, ("up for", "pool")),
    ]
    return [block for block in all_blocks if block.rows]


def page(snapshot: Snapshot, width: int, height: int) -> list[Text]:
    """Returns the lines of the page, as many as the terminal has at most."""
    head = [line for text in header(snapshot) for line in tables.wrapped(text, width)]
    quit_hint = Text("q quits", "dim")
    room = width - head[0].cell_len - len(quit_hint)
    if room > 0:
        head[0] = head[0] + Text(" " * room) + quit_hint
    shown, left = blocks(_without_domain(snapshot)), height - len(head)
    if not shown:
        return [*head, Text(), Text(NOTHING)][:height]
    beside = shown[1:] if snapshot.running else []
    if width < _WIDE or not beside:
        return [*head, *_stacked(shown, width, left)][:height]
    widest = max(tables.natural_width(printing.texts(block.rows)) for block in beside)
    right = min(widest, int(width * _SHARE))
    columns = _stacked(shown[:1], width - right - _BETWEEN, left), _stacked(beside, right, left)
    return [*head, *_side_by_side(*columns, width - right)][:height]


def _without_domain(snapshot: Snapshot) -> Snapshot:
    """Returns the same without the domain of the workers' hosts, if they all have the same one."""
    names = {row.name for row in snapshot.workers}
    domains = {name.partition("@")[2].partition(".")[2] for name in names}
    if len(names) < 2 or len(domains) > 1:
        return snapshot
    domain = f".{domains.pop()}"
    return snapshot._replace(
        workers=[row._replace(name=row.name.removesuffix(domain)) for row in snapshot.workers],
        running=[
            job._replace(worker=job.worker and job.worker.removesuffix(domain))
            for job in snapshot.running
        ],
    )


NOTHING = "Nothing runs, and there are no lanes, queues and workers."


def header(snapshot: Snapshot) -> Iterable[Text]:
    """Yields the lines above the tables: beats, each trouble, and the numbers of jobs."""
    beat, living = snapshot.beat, sum(row.missing_since is None for row in snapshot.workers)
    text = Text(f"{printing.utc(snapshot.now)} UTC   ")
    text.append(counted(living, "worker"), style="" if living else "red")
    if beat.leader is not None:
        text.append("   ").append(f"beat {beat.leader.label} leads", style="green")
    if beat.standbys:
        text.append(f", {counted(len(beat.standbys), 'standby', 'standbys')}")
    yield text
    for trouble in beat.troubles:
        yield Text(printing.line(trouble), "red")
    yield _counts(snapshot.counts)


def _counts(counts: Mapping[str, int]) -> Text:
    text = Text("jobs: ")
    shown = [(state, count) for state, count in counts.items() if count]
    for number, (state, count) in enumerate(shown):
        most = gauges.OVER if state in jobs.ENDED else gauges.MOST
        plus = "+" if count >= most else ""
        text.append(", " if number else "").append(f"{count:,}{plus}{tables.GLUE}")
        text.append(styled(state))
    return text if shown else text.append("none")


def _stacked(shown: list[Block], width: int, height: int) -> list[Text]:
    """Returns tables below each other, each with a share of the lines."""
    shares = share([len(block.rows) for block in shown], height - _AROUND * len(shown))
    stack: list[Text] = []
    for block, most in zip(shown, shares, strict=True):
        lines = tables.cut(
            printing.texts(block.rows)[:most],
            width,
            names=block.names,
            optional=block.optional,
            numbers=printing.numbers(block.rows),
        )
        left_out = len(block.rows) - most
        if left_out:
            note = f"… {left_out} more"
            room = width - lines[0].cell_len - len(note)
            if room > 0:
                lines[0] = lines[0] + Text(" " * room + note, "dim")
            elif most > 1:
                lines[-1] = Text(f"… {left_out + 1} more", "dim")
        stack += [Text(), *lines]
    return stack


def share(wanted: Sequence[int], room: int) -> list[int]:
    """Returns the lines that each gets of the room: all that it wants, or as many as the others.

    Each gets one at least.
    """
    shares = [1] * len(wanted)
    room -= len(wanted)
    while room > 0 and (hungry := [n for n, most in enumerate(wanted) if shares[n] < most]):
        for number in hungry[:room]:
            shares[number] += 1
        room -= len(hungry)
    return shares


def _side_by_side(left: list[Text], right: list[Text], start: int) -> Iterable[Text]:
    """Yields the lines of two columns; the second begins at `start`."""
    for one, other in zip_longest(left, right, fillvalue=Text()):
        yield one + Text(" " * (start - one.cell_len)) + other if other else one


def _running(snapshot: Snapshot, job: Job) -> dict[str, Cell]:
    return {
        "Running": str(job.id)[:8],
        "task": job.task,
        "for": span(snapshot.now - (job.started_at or job.created_at), units=1),
        "progress": progress(snapshot.executions.get(job.id)),
        "worker": job.worker,
    }


def progress(run: Execution | None) -> str | None:
    """Returns how far an execution is, in a few words; `None` if it doesn't say."""
    if run is None or (run.progress_done is None and not run.progress_message):
        return None
    done = "" if run.progress_done is None else f"{run.progress_done:g}"
    if run.progress_done is not None and run.progress_total:
        done = f"{run.progress_done / run.progress_total:.0%}"
    return f"{done} {run.progress_message or ''}".strip()


def _lane(row: LaneUsage, now: datetime) -> dict[str, Cell]:
    since = None if row.waiting_since is None else span(now - row.waiting_since, units=1)
    return {
        "Lanes": row.lane.name,
        "running": row.running,
        "limit": row.lane.max_running,
        "waiting": row.waiting,
        "for": since,
        "": styled("paused") if row.lane.paused_at is not None else None,
    }


def _queue(row: QueueSummary) -> dict[str, Cell]:
    remark = Text("no consumer", style="red") if row.is_unserved else None
    return {
        "Queues": row.name,
        "waiting": row.waiting,
        "delayed": row.delayed,
        "claimed": row.claimed,
        "dead": Text(str(row.dead), style="red" if row.dead else ""),
        "consumers": row.consumers,
        "oldest": None if row.age is None else span(row.age, units=1),
        "": styled("paused") if row.paused_at is not None else remark,
    }


def _worker(row: WorkerUsage, now: datetime) -> dict[str, Cell]:
    missing = row.missing_since and f"missing for {span(now - row.missing_since, units=1)}"
    return {
        "Workers": row.name,
        "running": row.running,
        "of": row.concurrency,
        "pool": row.pool,
        "up for": span(now - row.started_at, units=1),
        "": Text(missing, style="red") if missing else None,
    }
