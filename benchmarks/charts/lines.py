"""Draws how figures went over time as SVG: a panel for each figure, a line for each series."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from beats.report import number

from charts.svg import MARGIN, WIDTH, framed, text

_HEIGHT, _TITLE, _GAP, _SCALE = 76, 44, 16, 64
#: Hues that are readable on light and dark pages.
_COLOURS = ("#3f6fd1", "#c2571a", "#2a8a57", "#9a4fb5", "#b0892c", "#4a9fb0")


class Chart(NamedTuple):
    """Lines of one scale, from 0; each has a value for each moment, or none."""

    title: str
    note: str
    lines: Mapping[str, Sequence[float | None]]


def picture(heading: str, minutes: Sequence[float], charts: Sequence[Chart], footer: str) -> str:
    """Returns the SVG."""
    parts, y = [text(MARGIN, MARGIN + 20, heading, "heading")], MARGIN + 28
    for chart in charts:
        parts += _panel(chart, minutes, y)
        y += _TITLE + _HEIGHT + 18 + 17 * len(_legend(chart)) + _GAP
    parts.append(text(MARGIN, y + 17, footer, "note"))
    label = "; ".join(f"{chart.title}: {', '.join(_legend(chart))}" for chart in charts)
    return framed(heading, label, parts, y + 17 + MARGIN)


def _legend(chart: Chart) -> list[str]:
    ends = []
    for name, values in chart.lines.items():
        known = [value for value in values if value is not None]
        if known:
            ends.append(f"{name}: {number(known[0])} → {number(known[-1])}")
    return ends


def _panel(chart: Chart, minutes: Sequence[float], top: int) -> list[str]:
    parts = [
        text(MARGIN, top + 21, chart.title, "title"),
        text(MARGIN, top + 37, chart.note, "note"),
    ]
    left, floor = MARGIN + _SCALE, top + _TITLE + _HEIGHT
    room = WIDTH - MARGIN - left
    most = (
        max((v for line in chart.lines.values() for v in line if v is not None), default=0.0) or 1.0
    )
    last = minutes[-1] or 1.0
    parts.append(f'<path class="axis" d="M{left} {top + _TITLE}V{floor}H{WIDTH - MARGIN}"/>')
    parts.append(text(left - 6, top + _TITLE + 10, number(most), "note", "end"))
    parts.append(text(left - 6, floor, "0", "note", "end"))
    parts.append(text(WIDTH - MARGIN, floor + 15, f"{last:.0f} min", "note", "end"))
    for place, (_, values) in enumerate(chart.lines.items()):
        points = [
            (f"{left + room * minute / last:.1f}", f"{floor - _HEIGHT * value / most:.1f}")
            for minute, value in zip(minutes, values, strict=True)
            if value is not None
        ]
        bends = [
            f"{x},{y}"
            for number_, (x, y) in enumerate(points)
            if {y} != {level for _, level in points[max(0, number_ - 1) : number_ + 2]}
            or number_ in (0, len(points) - 1)
        ]
        colour = _COLOURS[place % len(_COLOURS)]
        drawn = f'fill="none" stroke="{colour}" stroke-width="1.5" points="{" ".join(bends)}"'
        parts.append(f"<polyline {drawn}/>")
    for place, words in enumerate(_legend(chart)):
        y = floor + 32 + 17 * place
        colour = _COLOURS[place % len(_COLOURS)]
        parts.append(f'<rect x="{left}" y="{y - 8}" width="10" height="8" fill="{colour}"/>')
        parts.append(text(left + 16, y, words, "note"))
    return parts
