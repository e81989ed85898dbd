"""What a worker measures of an attempt."""

from pgbeat.worker.recording.attempts import Memory


def test_short_tasks_share_a_reading_of_the_peak() -> None:
    memory = Memory(resets=True)
    memory.reset()
    before = memory.peak_mb(0.0, 0.001)
    block = bytearray(b"x") * (64 << 20)
    assert memory.peak_mb(0.001, 0.002) == before
    del block
    longer = memory.peak_mb(0.002, 0.010)
    assert before is not None and longer is not None and longer > before + 60


def test_the_peak_of_short_tasks_is_read_again_after_a_moment() -> None:
    memory = Memory(resets=True)
    memory.reset()
    before = memory.peak_mb(0.0, 0.001)
    block = bytearray(b"x") * (64 << 20)
    after = memory.peak_mb(0.1, 0.101)
    del block
    assert before is not None and after is not None and after > before + 60
    memory.reset()
    assert (memory.peak_mb(0.101, 0.102) or after) < after - 30
