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

#: From so many columns on, the running jobs have lanes, queues and workers beside them …
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


def blocks(found: Snapshot) -> list[Block]:
    """Returns the tables that have rows: running jobs, lanes, queues, workers."""
    made = [
        Block(
            [_running(found, job) for job in found.running],
            {"task": 30, "progress": 12, "worker": 16},
            ("worker", "progress"),
        ),
        Block([_lane(each, found.now) for each in found.lanes], {"Lanes": 20}, ("for", "limit")),
        Block(
            [_queue(each) for each in found.queues],
            {"Queues": 20},
            ("claimed", "delayed", "oldest", "dead"),
        ),
        Block(
            [_worker(each, found.now) for each in found.workers],
            {"Workers": 20},
            ("up for", "pool"),
        ),
    ]
    return [each for each in made if each.rows]


def page(found: Snapshot, width: int, height: int) -> list[Text]:
    """Returns the lines of the page, as many as the terminal has at most."""
    head = [line for each in header(found) for line in tables.wrapped(each, width)]
    quit_hint = Text("q quits", "dim")
    room = width - head[0].cell_len - len(quit_hint)
    if room > 0:
        head[0] = head[0] + Text(" " * room) + quit_hint
    shown, left = blocks(_without_domain(found)), height - len(head)
    if not shown:
        return [*head, Text(), Text(NOTHING)][:height]
    beside = shown[1:] if found.running else []
    if width < _WIDE or not beside:
        return [*head, *_stacked(shown, width, left)][:height]
    right = min(
        max(tables.natural_width(printing.texts(each.rows)) for each in beside), int(width * _SHARE)
    )
    columns = _stacked(shown[:1], width - right - _BETWEEN, left), _stacked(beside, right, left)
    return [*head, *_side_by_side(*columns, width - right)][:height]


def _without_domain(found: Snapshot) -> Snapshot:
    """Returns the same without the domain of the workers' hosts, if they all have the same one."""
    names = {each.name for each in found.workers}
    domains = {name.partition("@")[2].partition(".")[2] for name in names}
    if len(names) < 2 or len(domains) > 1:
        return found
    domain = f".{domains.pop()}"
    return found._replace(
        workers=[each._replace(name=each.name.removesuffix(domain)) for each in found.workers],
        running=[
            each._replace(worker=each.worker and each.worker.removesuffix(domain))
            for each in found.running
        ],
    )


NOTHING = "Nothing runs, and there are no lanes, queues and workers."


def header(found: Snapshot) -> Iterable[Text]:
    """Yields the lines above the tables: beats, each trouble, and the numbers of jobs."""
    beat, living = found.beat, sum(each.missing_since is None for each in found.workers)
    said = Text(f"{printing.utc(found.now)} UTC   ")
    said.append(counted(living, "worker"), style="" if living else "red")
    if beat.leader is not None:
        said.append("   ").append(f"beat {beat.leader.label} leads", style="green")
    if beat.standbys:
        said.append(f", {counted(len(beat.standbys), 'standby', 'standbys')}")
    yield said
    for trouble in beat.troubles:
        yield Text(printing.line(trouble), "red")
    yield _counts(found.counts)


def _counts(counts: Mapping[str, int]) -> Text:
    said = Text("jobs: ")
    shown = [(state, count) for state, count in counts.items() if count]
    for number, (state, count) in enumerate(shown):
        most = gauges.OVER if state in jobs.ENDED else gauges.MOST
        plus = "+" if count >= most else ""
        said.append(", " if number else "").append(f"{count:,}{plus}{tables.GLUE}")
        said.append(styled(state))
    return said if shown else said.append("none")


# -- laid out


def _stacked(shown: list[Block], width: int, height: int) -> list[Text]:
    """Returns tables below each other, each with a share of the lines."""
    shares = share([len(block.rows) for block in shown], height - _AROUND * len(shown))
    found: list[Text] = []
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
        found += [Text(), *lines]
    return found


def share(wanted: Sequence[int], room: int) -> list[int]:
    """Returns how many lines each gets of so many: all that it wants, or as many as the others.

    Each gets one at least.
    """
    given = [1] * len(wanted)
    room -= len(wanted)
    while room > 0 and (hungry := [n for n, most in enumerate(wanted) if given[n] < most]):
        for number in hungry[:room]:
            given[number] += 1
        room -= len(hungry)
    return given


def _side_by_side(left: list[Text], right: list[Text], start: int) -> Iterable[Text]:
    """Yields the lines of two columns, the second of which begins at `start`."""
    for one, other in zip_longest(left, right, fillvalue=Text()):
        yield one + Text(" " * (start - one.cell_len)) + other if other else one


# -- the tables


def _running(found: Snapshot, job: Job) -> dict[str, Cell]:
    return {
        "Running": str(job.id)[:8],
        "task": job.task,
        "for": span(found.now - (job.started_at or job.created_at), units=1),
        "progress": progress(found.executions.get(job.id)),
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


def _lane(each: LaneUsage, now: datetime) -> dict[str, Cell]:
    since = None if each.waiting_since is None else span(now - each.waiting_since, units=1)
    return {
        "Lanes": each.lane.name,
        "running": each.running,
        "limit": each.lane.max_running,
        "waiting": each.waiting,
        "for": since,
        "": styled("paused") if each.lane.paused_at is not None else None,
    }


def _queue(each: QueueSummary) -> dict[str, Cell]:
    remark = Text("no consumer", style="red") if each.is_unserved else None
    return {
        "Queues": each.name,
        "waiting": each.waiting,
        "delayed": each.delayed,
        "claimed": each.claimed,
        "dead": Text(str(each.dead), style="red" if each.dead else ""),
        "consumers": each.consumers,
        "oldest": None if each.age is None else span(each.age, units=1),
        "": styled("paused") if each.paused_at is not None else remark,
    }


def _worker(each: WorkerUsage, now: datetime) -> dict[str, Cell]:
    missing = each.missing_since and f"missing for {span(now - each.missing_since, units=1)}"
    return {
        "Workers": each.name,
        "running": each.running,
        "of": each.concurrency,
        "pool": each.pool,
        "up for": span(now - each.started_at, units=1),
        "": Text(missing, style="red") if missing else None,
    }
