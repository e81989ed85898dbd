"""Prints what the harness's report does of runs: `python shares.py harness/results/*`."""

import json
import sys
from pathlib import Path
from typing import Any


def median(phase: dict[str, Any], metric: str) -> float | None:
    """Returns a metric's median in a phase."""
    value = phase["metrics"].get(metric, {}).get("median")
    return None if value is None else float(value)


def lines(summary: dict[str, Any]) -> list[str]:
    """Returns a line for each system's phases, with the share of the first clean one's rate."""
    found = []
    for system, block in summary["systems"].items():
        clean = None
        for label, phase in block["phases"].items():
            rate = median(phase, "completion_rate") or 0.0
            clean = rate if clean is None else clean
            share = f"{rate / clean:.0%}" if clean else "—"
            latency = [median(phase, f"claim_p{n}_ms") or 0.0 for n in (50, 99)]
            lost = f"  lost {phase['jobs_lost']:.0f}" if phase.get("jobs_lost") is not None else ""
            found.append(
                f"{summary['scenario'] or 'custom':24}{system:15}{label:12}{rate:9,.1f}/s"
                f"{share:>7}  claim p50 {latency[0]:,.1f} p99 {latency[1]:,.1f} ms{lost}"
            )
    return found


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        summary = folder / "summary.json"
        print(
            "\n".join(
                lines(json.loads(summary.read_text()))
                if summary.exists()
                else [f"{folder}: no summary"]
            )
        )
