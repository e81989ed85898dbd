"""Fixtures of the tests of what workers record."""

from collections.abc import Iterator

import pytest

from pgbeat.worker.recording.recorder import Recorder
from tests.support.simulated_workers import FakeWorkers


@pytest.fixture
def recorder(fake_workers: FakeWorkers) -> Iterator[Recorder]:
    """A worker's, which writes all it has at the end."""
    recorder = Recorder(fake_workers.app, fake_workers.settings, 1)
    yield recorder
    recorder.close(10)
