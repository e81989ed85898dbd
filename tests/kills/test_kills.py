"""Kills at random statements double no effect of a step, and broken builds are found."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kills.broken_builds import BUILDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def killed(folder: Path, *options: str) -> tuple[int, str]:
    """Kills in a process of its own; returns its exit status and what it printed."""
    seed = os.environ.get("KILLS_SEED", "1")
    command = (f"--folder={folder}", f"--seed={seed}", *options)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.kills", *command],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(ended.stdout)
    return ended.returncode, ended.stdout


def test_forty_runs_have_each_effect_once(tmp_path: Path) -> None:
    """`python -m tests.kills --runs 1000` has more of them; `KILLS_SEED` chooses other kills."""
    status, output = killed(tmp_path)
    assert status == 0, output[-3000:]


@pytest.mark.parametrize("build", [build for build in BUILDS if build])
def test_a_broken_build_is_found(build: str, tmp_path: Path) -> None:
    status, output = killed(tmp_path, f"--build={build}")
    assert status == 1
    assert "BROKEN 2 effects of" in output
