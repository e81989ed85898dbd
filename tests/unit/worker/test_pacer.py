"""When a recorder writes: at once at first, seldom under load, soon if a lane or group waits."""

import pytest

from pgbeat.worker.recording.pacer import Pacer

#: A write's duration, in seconds, and the clock at the first write.
TOOK, START = 0.004, 1000.0


def write(pacer: Pacer, now: float, *, took: float = TOOK, has_more: bool = False) -> float:
    """Writes at `now`; returns the pause until the next write."""
    pacer.begin(now)
    pacer.end(now, now + took, has_more=has_more)
    return pacer.write_at - now - took


def test_the_first_write_is_due_at_once() -> None:
    assert Pacer().write_at <= START


def test_the_pause_grows_with_the_duration_of_a_write_up_to_a_limit() -> None:
    pauses = [write(Pacer(), START, took=took) for took in (0.001, 0.004, 0.009, 0.5)]
    assert pauses == pytest.approx([0.02, 0.08, 0.18, 0.2])


def test_a_backlog_is_written_in_a_burst_and_then_steadily() -> None:
    pacer = Pacer()
    now, pauses = START, []
    for _ in range(12):
        pauses.append(write(pacer, now, has_more=True))
        now = max(now + TOOK, pacer.write_at)
    assert all(pause <= 0 for pause in pauses[:3])
    assert pauses[-1] == pytest.approx(0.05 - TOOK)


def test_an_urgent_end_waits_for_half_of_a_write() -> None:
    pacer = Pacer()
    write(pacer, START)
    pacer.hurry()
    assert pacer.write_at == pytest.approx(START + TOOK * 1.5)
    write(pacer, START, took=1.0)
    pacer.hurry()
    assert pacer.write_at == pytest.approx(START + 1.015)


def test_an_end_that_cant_wait_is_written_at_once() -> None:
    pacer = Pacer()
    write(pacer, START)
    pacer.hurry(at_once=True)
    assert pacer.write_at <= START + TOOK


@pytest.mark.parametrize(("at_once", "pause"), [(True, 0.0), (False, TOOK / 2)])
def test_an_end_during_a_write_waits_no_longer_than_one_after_it(
    at_once: bool, pause: float
) -> None:
    pacer = Pacer()
    pacer.begin(START)
    pacer.hurry(at_once=at_once)
    pacer.end(START, START + TOOK, has_more=False)
    assert max(pacer.write_at, START + TOOK) == pytest.approx(START + TOOK + pause)


def test_hurrying_never_delays_a_write() -> None:
    pacer = Pacer()
    write(pacer, START)
    pacer.write_at = START
    pacer.hurry()
    assert pacer.write_at == START


def test_a_write_that_fails_is_not_repeated_at_once() -> None:
    pacer = Pacer()
    for _ in range(5):
        pacer.begin(START)
    assert pacer.write_at > START
    pacer.delay(START + 1)
    assert pacer.write_at == START + 1
