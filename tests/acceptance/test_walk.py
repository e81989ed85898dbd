"""Kills, freezes, cut sessions and open transactions at random, and what must hold afterwards."""

import os
import shutil
from pathlib import Path

import pytest

from tests.acceptance.walk.__main__ import walk

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="pgbouncer is not installed"),
]


@pytest.mark.timeout(600)
def test_two_minutes_of_faults_break_no_promise(tmp_path: Path) -> None:
    """`python -m tests.acceptance.walk` walks for longer; `WALK_SEED` chooses another walk."""
    assert walk(tmp_path, 120, int(os.environ.get("WALK_SEED", "1"))) == []
