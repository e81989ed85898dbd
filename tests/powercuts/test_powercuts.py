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
from tests.powercuts.filesystem import PROGRAMS as FILE_SYSTEM
from tests.powercuts.machine import PROGRAMS as MACHINE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def _needs(*programs: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, programs)),
        reason=f"needs root, {', '.join(programs)}",
    )


KINDS = (
    pytest.param((), marks=_needs(*MACHINE), id="machine"),
    pytest.param(("--filesystem",), marks=_needs(*FILE_SYSTEM), id="filesystem"),
)


def attacked(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Cuts the power of pgbeat's server twice; returns the exit status and the result."""
    figures = folder / "figures"
    command = ("pgbeat", "--cuts=2", "--publishes=4000", f"--json={figures}", *options)
    ended = subprocess.run([sys.executable, "-m", "tests.powercuts", *command], check=False)
    (result,) = json.loads(figures.read_text())
    return ended.returncode, result


@pytest.mark.parametrize("kind", KINDS)
def test_two_power_cuts_lose_nothing(kind: tuple[str, ...], tmp_path: Path) -> None:
    status, result = attacked(tmp_path, *kind)
    assert (status, result["lost"], result["undone_jobs"]) == (0, 0, 0)
    assert result["acknowledged"] > 3000
    assert result["completed_jobs"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("build", BUILDS)
def test_a_power_cut_finds_a_broken_build(
    build: str, kind: tuple[str, ...], tmp_path: Path
) -> None:
    status, result = attacked(tmp_path, f"--build={build}", *kind)
    assert status == 1
    assert result["lost"]
