"""Draws the timeline: a line of SVG for each schedule, in percents of its width."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from urllib.parse import quote

from pgbeat.monitoring.timeline import STEPS, Coming, Kind, Piece, ScheduleTimeline, Timeline
from pgbeat.web.pages.humanize import counted, first_line, length
from pgbeat.web.pages.load_chart import stamp

#: Bytes of all shapes of a page, about, and characters of an error in one.
_BYTES, _SAID = 110_000, 80
#: The least width of a run, in percents.
_LEAST = 0.35
#: Times of the axis, by the span: the distance, and how it is written.
_TICKS = {
    "1h": (timedelta(minutes=10), "%H:%M"),
    "1d": (timedelta(hours=4), "%H:%M"),
    "1w": (timedelta(days=1), "%a %d"),
}
#: Classes of kinds in the order in which they are drawn: failures above everything.
_CLASSES: dict[Kind, str] = {
    "waiting": "waits",
    "running": "going",
    "completed": "good",
    "cancelled": "skipped",
    "skipped": "dot",
    "failed": "bad",
    "not_launched": "bad",
}
_LAYERS = list(_CLASSES)
#: What several of a kind are called, if it is not the kind.
_NOUNS: dict[Kind, str] = {"skipped": "skip", "not_launched": "failed launch"}


#: Returns the place of a time, in percents of the width.
X = Callable[[datetime], float]


class Shape(NamedTuple):
    """A link: a bar from `x`, or a dot at it."""

    kind: str
    x: float
    width: float
    href: str
    title: str


class ScheduleLine(NamedTuple):
    """A schedule's line."""

    row: ScheduleTimeline
    shapes: list[Shape]
    #: Where the due times to come are, by whether they are certain.
    certain: list[float]
    uncertain: list[float]
    excluded: list[float]
    #: From where on more is due than is drawn.
    more: float | None
    #: How much of the width, from the left, is left out.
    cut: float
    #: The same in words.
    label: str


class TimelineDrawing(NamedTuple):
    """A timeline as it is drawn."""

    timeline: Timeline
    lines: list[ScheduleLine]
    #: Where the line of now is.
    now: float
    #: Places and times of the axis, and how these are written in UTC.
    axis: list[tuple[float, datetime, str]]


def drawing(timeline: Timeline) -> TimelineDrawing:
    """Draws a timeline."""

    def x(moment: datetime) -> float:
        return 100 * (moment - timeline.since) / (timeline.until - timeline.since)

    merged = _fitting(timeline)
    lines = [_line(*drawn, x, timeline) for drawn in zip(timeline.rows, merged, strict=True)]
    return TimelineDrawing(timeline, lines, round(x(timeline.now), 2), list(_axis(timeline, x)))


def _fitting(timeline: Timeline) -> list[list[Piece]]:
    """Returns the pieces of each row: of those with the most, fewer and coarser ones."""
    length = timeline.until - timeline.since
    steps = [length / STEPS for _ in timeline.rows]
    merged = [row.pieces for row in timeline.rows]
    sizes = [_size(row, row.pieces) for row in timeline.rows]
    while sum(sizes) > _BYTES:
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        if steps[largest] >= length:
            break
        steps[largest] *= 2
        row = timeline.rows[largest]
        merged[largest] = _merged(row.pieces, timeline.since, steps[largest])
        sizes[largest] = _size(row, merged[largest])
    return merged


def _size(row: ScheduleTimeline, pieces: Iterable[Piece]) -> int:
    """Returns about how many bytes the shapes of pieces take."""
    several = 110 + len(row.schedule.name)
    return sum(
        130 + (several if piece.number > 1 else 40) + min(_SAID, len(piece.said or ""))
        for piece in pieces
    )


def _merged(pieces: Iterable[Piece], since: datetime, step: timedelta) -> list[Piece]:
    """Returns at most one piece of each kind in each step."""
    merged: dict[tuple[Kind, int], Piece] = {}
    for piece in pieces:
        key = piece.kind, (piece.begin - since) // step
        other = merged.get(key)
        if other is not None:
            ends = [one.end for one in (other, piece)]
            last = None if None in ends else max(end for end in ends if end)
            newest = max(other, piece, key=lambda one: one.begin)
            begin, number = min(other.begin, piece.begin), other.number + piece.number
            piece = newest._replace(begin=begin, end=last, number=number)
        merged[key] = piece
    return list(merged.values())


def _line(row: ScheduleTimeline, pieces: Sequence[Piece], x: X, timeline: Timeline) -> ScheduleLine:
    drawn = sorted(pieces, key=lambda piece: _LAYERS.index(piece.kind))
    shapes = [_shape(row, piece, x, timeline) for piece in drawn]
    certain: list[float] = []
    uncertain: list[float] = []
    excluded: list[float] = []
    for due in _apart(row.coming, (timeline.until - timeline.since) / 60):
        places = excluded if due.skip else certain if due.is_certain else uncertain
        places.append(round(x(max(due.at, timeline.now)), 2))
    cut = round(max(0.0, x(row.complete_since)), 2)
    more = round(x(row.coming[-1].at), 2) if row.has_more_coming else None
    return ScheduleLine(row, shapes, certain, uncertain, excluded, more, cut, _label(row))


def _apart(coming: Iterable[Coming], least: timedelta) -> Iterable[Coming]:
    """Yields due times that are far enough apart to be distinguished."""
    last: datetime | None = None
    for due in coming:
        if last is None or due.at - last >= least:
            last = due.at
            yield due


def _shape(row: ScheduleTimeline, piece: Piece, x: X, timeline: Timeline) -> Shape:
    left = max(0.0, x(piece.begin))
    right = x(timeline.now if piece.end is None else min(piece.end, timeline.now))
    width = max(_LEAST, right - left)
    title = _title(piece, timeline.now)
    href = _href(row, piece, timeline)
    kind = _CLASSES[piece.kind] + (" many" if piece.number > 1 else "")
    return Shape(kind, round(left, 2), round(width, 2), href, title)


def _href(row: ScheduleTimeline, piece: Piece, timeline: Timeline) -> str:
    """Returns the page of the job, or of the jobs that began then, or of the schedule.

    It is seen from the overview, which is shorter, and made by hand: a page has hundreds.
    """
    if piece.number == 1 and piece.job_id is not None:
        return f"jobs/{piece.job_id}"
    name = quote(row.schedule.name)
    if piece.kind in ("skipped", "not_launched"):
        return f"schedules/{name}#history"
    begins = max(piece.begin, timeline.since) - timedelta(minutes=1)
    ends = (piece.end or timeline.now) + timedelta(minutes=1)
    return f"jobs?schedule={name}&from={stamp(begins)}&until={stamp(ends)}"


def _title(piece: Piece, now: datetime) -> str:
    end = now if piece.end is None else piece.end
    begins, took = _clock(piece.begin, now), length((end - piece.begin).total_seconds())
    link = " for " if piece.kind == "waiting" else ": "
    message = f"{link}{first_line(piece.said)[:_SAID]}" if piece.said else ""
    if piece.number > 1:
        noun = _NOUNS.get(piece.kind)
        what = counted(piece.number, noun) if noun else f"{piece.number:,} {piece.kind}"
        return f"{begins}–{_clock(end, now)}: {what}{', last' if message else ''}{message}"
    if piece.kind in ("skipped", "not_launched"):
        return f"{begins}, {piece.kind.replace('_', ' ')}{message}"
    if piece.kind == "waiting":
        return f"{begins}, has waited for {took}{', now' if message else ''}{message}"
    return f"{begins}, {piece.kind}{' for' if piece.end is None else ' after'} {took}{message}"


def _clock(moment: datetime, now: datetime) -> str:
    moment = moment.astimezone(UTC)
    return f"{moment:%H:%M:%S}" if moment.date() == now.date() else f"{moment:%a %d, %H:%M}"


def _label(row: ScheduleTimeline) -> str:
    """Returns the line in words, for screen readers."""
    counts: dict[Kind, int] = {}
    for piece in row.pieces:
        counts[piece.kind] = counts.get(piece.kind, 0) + piece.number
    parts = [f"{count:,} {kind.replace('_', ' ')}" for kind, count in counts.items()]
    return ", ".join(parts) or "nothing yet"


def _axis(timeline: Timeline, x: X) -> Iterator[tuple[float, datetime, str]]:
    distance, written = _TICKS[timeline.span]
    seconds = int(distance.total_seconds())
    moment = datetime.fromtimestamp(-(-int(timeline.since.timestamp()) // seconds) * seconds, UTC)
    while moment < timeline.until:
        yield round(x(moment), 2), moment, f"{moment:{written}}"
        moment += distance
