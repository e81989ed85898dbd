"""Draws panels of horizontal bars as SVG that is readable on light and dark pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

#: In pixels: the picture, its margin, names left of bars, values right of them, a line of bars.
WIDTH, MARGIN, NAMES, VALUES, LINE = 620, 16, 206, 86, 25
_BAR, _TITLE, _GAP = 15, 44, 14

# The picture has a background of its own: pages may be light while the system is dark.
_STYLE = """
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-size:14px;fill:#1f2328}
.paper{fill:#fff;stroke:#d0d7de}.heading{font-size:17px;font-weight:600}.title{font-weight:600}
.note{font-size:12.5px;fill:#57606a}.own{fill:#3f51b5}.peer{fill:#9aa7b8}.strong{font-weight:600}
.axis{fill:none;stroke:#9aa7b8}
@media(prefers-color-scheme:dark){text{fill:#e6e8ee}.paper{fill:#1e2129;stroke:#3a3f4b}
.note{fill:#a9b0bd}.own{fill:#8c9eff}.peer{fill:#667085}}
"""


@dataclass(frozen=True)
class Bar:
    """A bar, or a line that says why there is none."""

    name: str
    value: float | None
    #: The number, or the reason.
    text: str
    is_own: bool = False


@dataclass(frozen=True)
class Panel:
    """Bars of one scale."""

    title: str
    #: Below the title, such as which way is better.
    note: str
    bars: Sequence[Bar]


def picture(heading: str, panels: Sequence[Panel], footer: Sequence[str]) -> str:
    """Returns the SVG."""
    parts, y = [], MARGIN + 20
    parts.append(text(MARGIN, y, heading, "heading"))
    y += 8
    for panel in panels:
        parts += _panel(panel, y)
        y += _TITLE + LINE * len(panel.bars) + _GAP
    for line in footer:
        y += 17
        parts.append(text(MARGIN, y, line, "note"))
    height = y + MARGIN
    label = "; ".join(f"{panel.title}: {_spoken(panel)}" for panel in panels)
    return framed(heading, label, parts, height)


def framed(heading: str, label: str, parts: Sequence[str], height: int) -> str:
    """Returns the SVG of a picture's parts; `label` says what is in it."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" aria-label="{escape(label)}">',
            f"<title>{escape(heading)}</title>",
            f"<style>{_STYLE.strip()}</style>",
            f'<rect class="paper" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _spoken(panel: Panel) -> str:
    return ", ".join(f"{bar.name} {bar.text}" for bar in panel.bars)


def _panel(panel: Panel, top: int) -> list[str]:
    parts = [
        text(MARGIN, top + 21, panel.title, "title"),
        text(MARGIN, top + 37, panel.note, "note"),
    ]
    room = WIDTH - 2 * MARGIN - NAMES - VALUES
    most = max((bar.value for bar in panel.bars if bar.value is not None), default=0.0)
    for number, bar in enumerate(panel.bars):
        y = top + _TITLE + number * LINE
        left = MARGIN + NAMES
        kind = "strong" if bar.is_own else ""
        parts.append(text(left - 8, y + 14, bar.name, kind, "end"))
        if bar.value is None:
            parts.append(text(left, y + 14, bar.text, "note"))
            continue
        length = max(1.5, room * bar.value / most) if most else 1.5
        colour = "own" if bar.is_own else "peer"
        parts.append(
            f'<rect class="{colour}" x="{left}" y="{y + 2}" width="{length:.1f}" '
            f'height="{_BAR}" rx="2"/>'
        )
        parts.append(text(left + round(length) + 7, y + 14, bar.text, kind))
    return parts


def text(x: int, y: int, words: str, kind: str = "", anchor: str = "") -> str:
    """Returns words at a place."""
    kind = f' class="{kind}"' if kind else ""
    anchor = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x}" y="{y}"{kind}{anchor}>{escape(words)}</text>'
