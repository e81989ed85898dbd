"""Kills, freezes, cut sessions and open transactions at random, and what must hold afterwards."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.broken_builds import BUILDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="pgbouncer is not installed"),
]


def made(folder: Path, minutes: float, *options: str, seed: str = "1") -> tuple[int, list[str]]:
    """Makes chaos in a process of its own; its exit status and the broken promises."""
    command = (f"--minutes={minutes}", f"--seed={seed}", f"--folder={folder}", *options)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *command],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(ended.stdout)
    return ended.returncode, [
        line for line in ended.stdout.splitlines() if line.startswith("BROKEN ")
    ]


@pytest.mark.timeout(600)
def test_two_minutes_of_faults_break_no_promise(tmp_path: Path) -> None:
    """`python -m tests.chaos` does so for longer; `CHAOS_SEED` chooses other faults."""
    assert made(tmp_path, 2, seed=os.environ.get("CHAOS_SEED", "1")) == (0, [])


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", BUILDS)
def test_a_broken_build_is_found(name: str, tmp_path: Path) -> None:
    """On a busy machine little happens in a run, so there may be several."""
    build = BUILDS[name]
    options = ("--pause=2", f"--build={name}", "--only", *build.faults)
    for seed in "123":
        status, broken = made(tmp_path / seed, 0.7, *options, seed=seed)
        if status == 1:
            break
    assert status == 1
    assert build.promise in "".join(broken)
