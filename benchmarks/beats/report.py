"""Tables of the results: a column a contender, and how pgbeat does against its peers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table

from beats.measures import Figures

#: All results: measure → case → contender → figures.
Results = dict[str, dict[str, dict[str, Figures]]]


#: Percent of stolen CPU above which a figure is called disturbed.
DISTURBED = 5.0


@dataclass(frozen=True)
class Row:
    """A line of a table: the figure `key` (`a.b` is b inside a), and which way is better."""

    label: str
    key: str
    better: Literal["less", "more", ""] = "less"


TABLES: dict[str, tuple[str, list[Row]]] = {
    "idle": (
        "Nothing due: {}",
        [
            Row("idle pass, ms", "idle_ms"),
            Row("construct + first pass, s", "startup_s"),
            Row("peak memory, MB", "peak_mb"),
        ],
    ),
    "launch": (
        "All due at once, counted in the broker: {}",
        [
            Row("launches a second", "per_s", "more"),
            Row("launched in 15 s at most", "launched", ""),
            Row("CPU of beat, µs a launch", "beat_us"),
            Row("CPU of its servers, µs a launch", "server_us"),
        ],
    ),
    "change": (
        "From a change of a row to its message: {}",
        [Row("median, ms", "median_ms"), Row("slowest, ms", "max_ms")],
    ),
    "late": (
        "How late, as seen in the broker: {}",
        [
            Row("p50, ms", "p50_ms"),
            Row("p95, ms", "p95_ms"),
            Row("p99, ms", "p99_ms"),
            Row("max, ms", "max_ms"),
            Row("launched of what was due, %", "launched_percent", "more"),
            Row("decided_at - due_at: p50, ms", "decided.p50_ms"),
            Row("p95, ms", "decided.p95_ms"),
            Row("p99, ms", "decided.p99_ms"),
            Row("max, ms", "decided.max_ms"),
        ],
    ),
    "takeover": (
        "Take-over after kill -9 of the leader: {}",
        [
            Row("standby holds the lock, ms, median", "lock_median_ms"),
            Row("first launch, ms, median", "launch_median_ms"),
            Row("first launch, ms, slowest", "launch_max_ms"),
        ],
    ),
}


def number(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:,.0f}".replace(",", " ") if value >= 100 else f"{value:.3g}"


def figure(figures: Figures | None, key: str) -> float | str:
    """The figure, or the word that stands for it."""
    if figures is None:
        return "-"
    if "note" in figures:
        return str(figures["note"])
    if "error" in figures:
        return "failed"
    value = figures
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return f">{figures['limit_s']:.0f} s" if "limit_s" in figures else "-"
        value = value[part]
    return float(value)  # type: ignore[arg-type]


#: What a column of comparisons says of a row: its figures by contender, and which way is better.
Comparison = Callable[[Mapping[str, float | str], str], str]


def ratio(values: Mapping[str, float | str], better: str, peer: str) -> str:
    """How many times better pgbeat is than the peer; below 1 it is worse."""
    ours, theirs = values.get("pgbeat", "-"), values.get(peer, "-")
    if not better or isinstance(ours, str) or isinstance(theirs, str):
        return "-"
    above, below = (ours, theirs) if better == "more" else (theirs, ours)
    return f"{number(above / below)}x" if below else "-"


def against_best(values: Mapping[str, float | str], better: str) -> str:
    """The ratio to the best peer, and which that is."""
    peers = {k: v for k, v in values.items() if k != "pgbeat" and not isinstance(v, str)}
    if not peers:
        return "-"
    best = (max if better == "more" else min)(peers, key=lambda name: peers[name])
    found = ratio(values, better, best)
    return found if found == "-" else f"{found} ({best})"


def against(peer: str) -> Comparison:
    """The comparison with one peer."""
    return lambda values, better: ratio(values, better, peer)


AGAINST_BEST: Mapping[str, Comparison] = {"pgbeat vs best peer": against_best}


def print_results(
    console: Console,
    results: Results,
    names: list[str],
    tables: Mapping[str, tuple[str, list[Row]]] = TABLES,
    comparisons: Mapping[str, Comparison] = AGAINST_BEST,
) -> None:
    """A table for every case that there are results for, with remarks and failures below.

    `tables` has a title and rows for each measure, `comparisons` the last columns.
    """
    for measure, cases in results.items():
        title, rows = tables[measure]
        for case, by_name in cases.items():
            table = Table()
            table.add_column("")
            for name in names:
                table.add_column(name, justify="right")
            for heading in comparisons:
                table.add_column(heading, justify="right")
            for row in rows:
                values = {name: figure(by_name.get(name), row.key) for name in names}
                if all(value == "-" for value in values.values()):
                    continue
                cells = [v if isinstance(v, str) else number(v) for v in values.values()]
                if table.row_count:  # a note is said once
                    notes = [by_name.get(name, {}).get("note") for name in names]
                    cells = ["" if c == n else c for c, n in zip(cells, notes, strict=True)]
                compared = [compare(values, row.better) for compare in comparisons.values()]
                table.add_row(row.label, *cells, *compared)
            if not table.row_count:
                continue
            console.print(f"\n[bold]{title.format(case)}[/bold]", highlight=False)
            console.print(table)
            for name, figures in by_name.items():
                for kind in ("remark", "error"):
                    if kind in figures:
                        console.print(f"  {name}: {figures[kind]}", highlight=False, markup=False)
                stolen = figures.get("stolen_percent") or 0
                if stolen > DISTURBED:
                    console.print(f"  {name}: disturbed, {stolen:.0f} % of the CPU was stolen")
