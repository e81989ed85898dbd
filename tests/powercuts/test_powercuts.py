"""Power cuts lose nothing of pgbeat's, and broken builds are found."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.powercuts.cases import BUILDS
from tests.powercuts.machine import PROGRAMS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)),
        reason=f"needs root, {', '.join(PROGRAMS)}",
    ),
]


def attacked(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Cuts the power of pgbeat's server twice; returns the exit status and the result."""
    figures = folder / "figures"
    command = ("pgbeat", "--cuts=2", "--publishes=4000", f"--json={figures}", *options)
    ended = subprocess.run([sys.executable, "-m", "tests.powercuts", *command], check=False)
    (result,) = json.loads(figures.read_text())
    return ended.returncode, result


def test_two_power_cuts_lose_nothing(tmp_path: Path) -> None:
    status, result = attacked(tmp_path)
    assert (status, result["lost"], result["undone_jobs"]) == (0, 0, 0)
    assert result["acknowledged"] > 3000
    assert result["completed_jobs"]


@pytest.mark.parametrize("build", BUILDS)
def test_a_power_cut_finds_a_broken_build(build: str, tmp_path: Path) -> None:
    status, result = attacked(tmp_path, f"--build={build}")
    assert status == 1
    assert result["lost"]
