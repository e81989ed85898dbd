"""Draws a job's trace: a line of SVG for each attempt, in percents of its width."""

from datetime import UTC, datetime
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from pgbeat.jobs.explaining.trace import WORDS, Kind, Phase, Trace
from pgbeat.web.pages.humanize import length

#: The least width of a phase, in percents.
_LEAST = 0.3
#: Seconds between two times of the axis, and how many of these there are at most.
_STEPS = (
    .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800,
    3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
)  # fmt: skip
_TICKS = 6
_RAN = {"completed": "good", "failed": "bad", "lost": "bad", None: "going"}
_WAITS: dict[Kind, str] = {
    "lane": "lane",
    "lane_or_queue": "lane",
    "queue": "queue",
    "backoff": "backoff",
    "snoozed": "backoff",
}


class PhaseBar(NamedTuple):
    """A phase as it is drawn."""

    kind: str
    x: float
    width: float
    title: str


class AttemptLine(NamedTuple):
    """An attempt."""

    job_id: UUID
    attempt: int
    bars: list[PhaseBar]


class PhaseRow(NamedTuple):
    """A phase as a row of the table."""

    phase: Phase
    kind: str
    #: The exact time, with milliseconds if they matter.
    at: str
    took: str


class TraceDrawing(NamedTuple):
    """A trace as it is drawn, and the same as a table."""

    trace: Trace
    lines: list[AttemptLine]
    #: Places and times of the axis, from the beginning.
    axis: list[tuple[float, str]]
    entries: list[PhaseRow]
    #: Classes and words of what is drawn.
    legend: list[tuple[str, str]]


def drawing(trace: Trace, now: datetime) -> TraceDrawing:
    """Draws a trace."""
    whole = max((trace.until - trace.since).total_seconds(), 0.001)
    lines = [
        AttemptLine(job_id, phases[0].attempt, [_bar(phase, trace, whole, now) for phase in phases])
        for job_id, phases in (
            (job_id, [phase for phase in those if not phase.is_moment])
            for job_id, those in groupby(trace.phases, lambda phase: phase.job_id)
        )
        if phases
    ]
    entries = [PhaseRow(row, _class(row), _at(row, whole), _took(row, now)) for row in trace.phases]
    return TraceDrawing(trace, lines, _axis(whole), entries, _legend(trace))


def _bar(phase: Phase, trace: Trace, whole: float, now: datetime) -> PhaseBar:
    x = 100 * (phase.begin - trace.since).total_seconds() / whole
    width = max(100 * phase.lasts(now).total_seconds() / whole, _LEAST)
    x = min(x, 100 - _LEAST)
    ended = f": {phase.state}" if phase.state else ""
    title = f"{phase.words}, {_took(phase, now)}{ended}"
    return PhaseBar(_class(phase), round(x, 2), round(min(width, 100 - x), 2), title)


def _class(phase: Phase) -> str:
    if phase.kind in ("running", "ended"):
        return _RAN.get(phase.state, "skipped")
    if phase.kind == "step":
        return "step"
    return "" if phase.is_moment else _WAITS.get(phase.kind, "held")


def _took(phase: Phase, now: datetime) -> str:
    return "" if phase.is_moment else _exactly(phase.lasts(now).total_seconds())


def _exactly(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else length(seconds)


def _at(phase: Phase, whole: float) -> str:
    at = phase.begin.astimezone(UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}" + (f".{at:%f}"[:4] if whole < 60 else "")


def _axis(whole: float) -> list[tuple[float, str]]:
    step = next((seconds for seconds in _STEPS if whole / seconds <= _TICKS), None)
    if step is None:
        weeks = -(-whole // (_TICKS * _STEPS[-1]))
        step = weeks * _STEPS[-1]
    return [
        (round(100 * number * step / whole, 2), _exactly(number * step) if number else "0")
        for number in range(int(whole / step) + 1)
        if number * step / whole < 0.97
    ]


#: What the colours stand for.
_NAMES = {
    "lane": "in lane",
    "queue": "in queue",
    "backoff": "until it is tried again",
    "held": "held back",
    "going": "running",
    "good": "completed",
    "bad": "failed",
    "skipped": "ended otherwise",
    "step": "a step",
}


def _legend(trace: Trace) -> list[tuple[str, str]]:
    """Returns the classes that are drawn, with their meaning."""
    drawn: dict[str, set[str]] = {}
    for phase in trace.phases:
        if not phase.is_moment:
            drawn.setdefault(_class(phase), set()).add(phase.state or WORDS[phase.kind])
    names = dict(_NAMES)
    for kind in ("held", "skipped"):
        if len(drawn.get(kind, ())) == 1:
            [names[kind]] = drawn[kind]
    return [(kind, name) for kind, name in names.items() if kind in drawn]
