"""What waits for another transaction's lock is tried again soon."""

from pgbeat.database.locks.lock_waits import Postponed


def test_what_is_postponed_is_tried_again_at_least_each_half_second() -> None:
    postponed = Postponed()
    delays = [postponed.add("s", "schedule 's'", "a lock") for _ in range(10)]
    assert delays[0] == 0.05
    assert delays == sorted(delays)
    assert delays[-1] == 0.5
    postponed.done(["s"])
    assert postponed.add("s", "schedule 's'", "a lock") == 0.05
