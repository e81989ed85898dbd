"""Kills, freezes, cut sessions and open transactions at random, and what must hold afterwards."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.__main__ import run
from tests.chaos.broken_builds import BUILDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="pgbouncer is not installed"),
]


@pytest.mark.timeout(600)
def test_two_minutes_of_faults_break_no_promise(tmp_path: Path) -> None:
    """`python -m tests.chaos` does so for longer; `CHAOS_SEED` chooses other faults."""
    assert run(tmp_path, 120, int(os.environ.get("CHAOS_SEED", "1"))) == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BUILDS)
def test_a_broken_build_is_found(name: str, tmp_path: Path) -> None:
    build = BUILDS[name]
    command = ("--minutes=0.7", "--seed=1", "--pause=2", f"--build={name}", f"--folder={tmp_path}")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *command, "--only", *build.faults],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert build.promise in "".join(
        line for line in ended.stdout.splitlines() if line.startswith("BROKEN ")
    )
