"""Draws the timeline: a line of SVG for each schedule, in percents of its width."""

from collections.abc import Callable, Iterable, Sequence
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
_CLASSES: dict[Kind, str] = {
    "completed": "good",
    "failed": "bad",
    "running": "going",
    "waiting": "waits",
    "cancelled": "skipped",
    "skipped": "dot",
    "not_launched": "bad",
}
_NOUNS: dict[Kind, str] = {"skipped": "skip", "not_launched": "failed launch"}
#: What several of a kind are called.
_WORDS: dict[Kind, str] = {
    "completed": "completed",
    "failed": "failed",
    "running": "running",
    "waiting": "waiting",
    "cancelled": "cancelled",
}


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


def drawing(found: Timeline) -> TimelineDrawing:
    """Draws a timeline."""

    def x(moment: datetime) -> float:
        return 100 * (moment - found.since) / (found.until - found.since)

    merged = _fitting(found)
    lines = [_line(row, pieces, x, found) for row, pieces in zip(found.rows, merged, strict=True)]
    return TimelineDrawing(found, lines, round(x(found.now), 2), list(_axis(found, x)))


def _fitting(found: Timeline) -> list[list[Piece]]:
    """Returns the pieces of each row: of those with the most, fewer and coarser ones."""
    length = found.until - found.since
    steps = [length / STEPS for _ in found.rows]
    merged = [row.pieces for row in found.rows]
    sizes = [_size(row, row.pieces) for row in found.rows]
    while sum(sizes) > _BYTES:
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        if steps[largest] >= length:
            break
        steps[largest] *= 2
        row = found.rows[largest]
        merged[largest] = _merged(row.pieces, found.since, steps[largest])
        sizes[largest] = _size(row, merged[largest])
    return merged


def _size(row: ScheduleTimeline, pieces: Iterable[Piece]) -> int:
    """Returns about how many bytes the shapes of pieces take."""
    several = 110 + len(row.schedule.name)
    return sum(
        130 + (several if each.number > 1 else 40) + min(_SAID, len(each.said or ""))
        for each in pieces
    )


def _merged(pieces: Iterable[Piece], since: datetime, step: timedelta) -> list[Piece]:
    """Returns pieces of which there is one of a kind in each step."""
    found: dict[tuple[Kind, int], Piece] = {}
    for piece in pieces:
        key = piece.kind, (piece.begin - since) // step
        other = found.get(key)
        if other is not None:
            ends = [each.end for each in (other, piece)]
            last = None if None in ends else max(end for end in ends if end)
            newest = max(other, piece, key=lambda each: each.begin)
            begin, number = min(other.begin, piece.begin), other.number + piece.number
            piece = newest._replace(begin=begin, end=last, number=number)
        found[key] = piece
    return list(found.values())


def _line(
    row: ScheduleTimeline, pieces: Sequence[Piece], x: Callable[[datetime], float], found: Timeline
) -> ScheduleLine:
    shapes = [_shape(row, piece, x, found) for piece in sorted(pieces, key=_layer)]
    certain: list[float] = []
    uncertain: list[float] = []
    excluded: list[float] = []
    for each in _apart(row.coming, (found.until - found.since) / 60):
        places = excluded if each.skip else certain if each.is_certain else uncertain
        places.append(round(x(max(each.at, found.now)), 2))
    cut = round(max(0.0, x(row.complete_since)), 2)
    more = round(x(row.coming[-1].at), 2) if row.has_more_coming else None
    return ScheduleLine(row, shapes, certain, uncertain, excluded, more, cut, _label(row))


def _layer(piece: Piece) -> int:
    """Returns what is drawn above what: failures above everything."""
    return (
        "waiting",
        "running",
        "completed",
        "cancelled",
        "skipped",
        "failed",
        "not_launched",
    ).index(piece.kind)


def _apart(coming: Iterable[Coming], least: timedelta) -> Iterable[Coming]:
    """Yields due times that are far enough from each other to be told apart."""
    last: datetime | None = None
    for each in coming:
        if last is None or each.at - last >= least:
            last = each.at
            yield each


def _shape(
    row: ScheduleTimeline, piece: Piece, x: Callable[[datetime], float], found: Timeline
) -> Shape:
    left = max(0.0, x(piece.begin))
    right = x(found.now if piece.end is None else min(piece.end, found.now))
    width = max(_LEAST, right - left)
    title = _title(piece, found.now)
    href = _href(row, piece, found)
    kind = _CLASSES[piece.kind] + (" many" if piece.number > 1 else "")
    return Shape(kind, round(left, 2), round(width, 2), href, title)


def _href(row: ScheduleTimeline, piece: Piece, found: Timeline) -> str:
    """Returns the page of the job, or of the jobs that began then, or of the schedule.

    It is seen from the overview, which is shorter, and made by hand: a page has hundreds.
    """
    if piece.number == 1 and piece.job_id is not None:
        return f"jobs/{piece.job_id}"
    name = quote(row.schedule.name)
    if piece.kind in ("skipped", "not_launched"):
        return f"schedules/{name}#history"
    begins = max(piece.begin, found.since) - timedelta(minutes=1)
    ends = (piece.end or found.now) + timedelta(minutes=1)
    return f"jobs?schedule={name}&from={stamp(begins)}&until={stamp(ends)}"


def _title(piece: Piece, now: datetime) -> str:
    end = now if piece.end is None else piece.end
    begins, took = _clock(piece.begin, now), length((end - piece.begin).total_seconds())
    said = f": {first_line(piece.said)[:_SAID]}" if piece.said else ""
    if piece.number > 1:
        noun = _NOUNS.get(piece.kind)
        what = counted(piece.number, noun) if noun else f"{piece.number:,} {_WORDS[piece.kind]}"
        return f"{begins}–{_clock(end, now)}: {what}{', last' if said else ''}{said}"
    if piece.kind in ("skipped", "not_launched"):
        return f"{begins}, {piece.kind.replace('_', ' ')}{said}"
    if piece.kind == "waiting":
        return f"{begins}, has waited for {took}"
    return f"{begins}, {piece.kind}{' for' if piece.end is None else ' after'} {took}{said}"


def _clock(moment: datetime, now: datetime) -> str:
    moment = moment.astimezone(UTC)
    return f"{moment:%H:%M:%S}" if moment.date() == now.date() else f"{moment:%a %d, %H:%M}"


def _label(row: ScheduleTimeline) -> str:
    """Returns the line in words, for those who don't see it."""
    counts: dict[Kind, int] = {}
    for piece in row.pieces:
        counts[piece.kind] = counts.get(piece.kind, 0) + piece.number
    said = [f"{count:,} {kind.replace('_', ' ')}" for kind, count in counts.items()]
    return ", ".join(said) or "nothing yet"


def _axis(found: Timeline, x: Callable[[datetime], float]) -> Iterable[tuple[float, datetime, str]]:
    distance, written = _TICKS[found.span]
    seconds = int(distance.total_seconds())
    moment = datetime.fromtimestamp(-(-int(found.since.timestamp()) // seconds) * seconds, UTC)
    while moment < found.until:
        yield round(x(moment), 2), moment, f"{moment:{written}}"
        moment += distance
