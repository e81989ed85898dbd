"""Checks that the benchmark of durable steps runs, and that what sleeps holds nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_benchmark_of_steps(server: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = f"benchmarks/steps.py --contenders pgbeat --json {figures}"
    sizes = "--steps 3 --times 1 --events 2 --sleepers 5"
    process = subprocess.Popen(
        [sys.executable, *command.split(), *sizes.split()],
        cwd=ROOT,
        env={**os.environ, "PGBEAT_TEST_URL": server},
    )
    try:
        assert process.wait(540) == 0
    finally:
        process.terminate()  # it stops what it has started
        process.wait(30)
    results = json.loads(figures.read_text())["results"]
    assert [case["pgbeat"].get("steps") for case in results["step"].values()] == [3, 3, 3]
    (event,) = results["event"].values()
    assert event["pgbeat"]["events"] == 2
    (sleep,) = results["sleep"].values()
    assert (sleep["pgbeat"]["slots"], sleep["pgbeat"]["messages"]) == (0, 0)
