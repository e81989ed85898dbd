"""Kills, freezes, cut sessions and open transactions at random, and what must hold afterwards."""

import os
import shutil
from pathlib import Path

import pytest

from tests.chaos.__main__ import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="pgbouncer is not installed"),
]


@pytest.mark.timeout(600)
def test_two_minutes_of_faults_break_no_promise(tmp_path: Path) -> None:
    """`python -m tests.chaos` does so for longer; `CHAOS_SEED` chooses other faults."""
    assert run(tmp_path, 120, int(os.environ.get("CHAOS_SEED", "1"))) == []
