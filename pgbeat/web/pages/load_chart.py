"""Draws the chart of the load over time."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection

from pgbeat.monitoring.rollups.load import Load, Point, load
from pgbeat.web.pages.humanize import length
from pgbeat.web.pages.render import Visit, path

#: The spans to choose from, and the default.
SPANS = {
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "90d": timedelta(days=90),
}
USUAL = "6h"
#: The size of a drawing, which is stretched to the width of the page.
WIDTH, HEIGHT = 1000, 100
#: Outcomes from the axis up, and their classes.
_OUTCOMES = (
    ("completed", "good"),
    ("failed", "bad"),
    ("cancelled", "skipped"),
    ("skipped", "skipped"),
)


class BarPart(NamedTuple):
    """A part of a bar."""

    y: float
    height: float
    kind: str


class Bar(NamedTuple):
    """The ends of a step."""

    x: float
    width: float
    blocks: list[BarPart]
    title: str
    #: The page of the jobs that were created in that time.
    href: str


class Chart(NamedTuple):
    """What a chart shows; lines are points of SVG."""

    load: Load
    span: str
    bars: list[Bar]
    most_ended: int
    running: list[str]
    waiting: list[str]
    longest: float
    depth: list[str]
    #: Where links lead that choose a span.
    spans: list[tuple[str, str]]
    #: Where brushing leads: a path that lacks the times.
    jobs: str


def chart(
    visit: Visit,
    connection: Connection,
    span: str,
    *,
    here: Callable[[str], str],
    filters: Mapping[str, str],
    **of: Any,
) -> Chart:
    """Reads the load of a span, of all or `of` a task, a lane or a queue, and draws it.

    `here` returns the path of the page for another span. Bars lead to the list of jobs, with
    `filters`.
    """
    span = span if span in SPANS else USUAL
    series = load(connection, visit.namespace, since=SPANS[span], **of)
    most = max((point.ended for point in series.points), default=0)
    longest = max(
        (max(point.running_p95 or 0, point.waiting_p95 or 0) for point in series.points), default=0
    )

    def lines(name: str, top: float) -> list[str]:
        return _lines([getattr(point, name) for point in series.points], top)

    return Chart(
        series,
        span,
        _bars(series, most, filters),
        most,
        running=lines("running_p95", longest),
        waiting=lines("waiting_p95", longest),
        longest=longest,
        depth=lines("depth", series.total.depth),
        spans=[(name, here(name)) for name in SPANS],
        jobs=path("jobs", **filters),
    )


def chart_of(visit: Visit, connection: Connection, kind: str, name: str, span: str) -> Chart:
    """Draws the load of one `task`, `lane` or `queue`, for its page."""
    of = {kind: name}

    def here(span: str) -> str:
        return path(f"{kind}s", name, span=span)

    return chart(visit, connection, span, here=here, filters=of, **of)


def _bars(series: Load, most: int, filters: Mapping[str, str]) -> list[Bar]:
    """Returns a bar for each step in which something ended."""
    step = WIDTH / max(1, len(series.points))
    gap = min(2.0, step / 5)
    bars = []
    for number, point in enumerate(series.points):
        if not point.ended:
            continue
        blocks, top = [], float(HEIGHT)
        for name, kind in _OUTCOMES:
            # What is there is visible, however little.
            if count := getattr(point, name):
                height = max(2.0, count / most * HEIGHT)
                top -= height
                blocks.append(BarPart(round(max(0.0, top), 1), round(height, 1), kind))
        until = point.at + series.step
        href = path("jobs", **{"from": stamp(point.at), "until": stamp(until)}, **filters)
        x = round(number * step, 1)
        bars.append(Bar(x, round(step - gap, 1), blocks, _title(point, series.step), href))
    return bars


def stamp(moment: datetime) -> str:
    """Returns a time for a URL."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%MZ}"


def _title(point: Point, step: timedelta) -> str:
    parts = [f"{count:,} {name}" for name, _ in _OUTCOMES if (count := getattr(point, name))]
    if point.running_p95 is not None and point.waiting_p95 is not None:
        parts.append(f"95% ran less than {length(point.running_p95)}")
        parts.append(f"and waited less than {length(point.waiting_p95)}")
    return f"{point.at:%Y-%m-%d %H:%M} UTC, {length(step.total_seconds())}: " + "; ".join(parts)


def _lines(values: Sequence[float | None], top: float) -> list[str]:
    """Returns lines through the values that are there; a value by itself is a short one."""
    step = WIDTH / max(1, len(values))
    lines: list[list[str]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            lines.append([])
            continue
        y = round(HEIGHT - (value / top * HEIGHT if top else 0), 1)
        lines[-1] += [f"{number * step:.1f},{y}", f"{(number + 1) * step:.1f},{y}"]
    return [" ".join(line) for line in lines if line]
