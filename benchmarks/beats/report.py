"""Tables of the results: a column a contender, and how pgbeat does against the best peer."""

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


def ratio(values: dict[str, float | str], better: str) -> str:
    """How many times better pgbeat is than the best peer (below 1: worse), and which that is."""
    ours = values.get("pgbeat")
    peers = {k: v for k, v in values.items() if k != "pgbeat" and not isinstance(v, str)}
    if not better or ours is None or isinstance(ours, str) or not peers:
        return "-"
    best = (max if better == "more" else min)(peers, key=lambda name: peers[name])
    above, below = (ours, peers[best]) if better == "more" else (peers[best], ours)
    return f"{number(above / below)}x ({best})" if below else "-"


def print_results(console: Console, results: Results, names: list[str]) -> None:
    """A table for every case that there are results for, with remarks and failures below."""
    for measure, cases in results.items():
        title, rows = TABLES[measure]
        for case, by_name in cases.items():
            table = Table()
            table.add_column("")
            for name in names:
                table.add_column(name, justify="right")
            table.add_column("pgbeat vs best peer", justify="right")
            for row in rows:
                values = {name: figure(by_name.get(name), row.key) for name in names}
                if all(value == "-" for value in values.values()):
                    continue
                cells = [v if isinstance(v, str) else number(v) for v in values.values()]
                if table.row_count:  # a note is said once
                    notes = [by_name.get(name, {}).get("note") for name in names]
                    cells = ["" if c == n else c for c, n in zip(cells, notes, strict=True)]
                table.add_row(row.label, *cells, ratio(values, row.better))
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
