"""What is kept of the lines that an execution logs."""

import time

from pgbeat.worker.recording.attempts import Attempt
from pgbeat.worker.task_logs import ALL, TaskLog


def test_the_last_lines_are_kept() -> None:
    log = TaskLog(3)
    for number in range(5):
        log.add(number, "INFO", "shop", f"line {number}")
    assert log.document() == {
        "omitted": 2,
        "lines": [[n, "INFO", "shop", f"line {n}"] for n in (2, 3, 4)],
    }


def test_long_lines_leave_room_for_fewer() -> None:
    """One is kept, however long."""
    log = TaskLog(1_000)
    for letter in "abcd":
        log.add(0, "INFO", "shop", letter * (ALL // 2))
    assert [line[3][0] for line in log.document()["lines"]] == ["c", "d"]
    log.add(0, "INFO", "shop", "e" * (ALL + 1))
    assert [line[3][0] for line in log.document()["lines"]] == ["e"]
    assert log.document()["omitted"] == 4


def test_an_execution_that_goes_on_is_written_with_its_lines_now_and_then() -> None:
    """With its end they are always written."""
    attempt = Attempt("00000000-0000-0000-0000-000000000000", "w", 0, False, None)
    attempt.log = TaskLog(10)
    attempt.log.add(0, "INFO", "shop", "hello")
    attempt.is_known = True
    [(_, first)] = attempt.documents(1, 1)
    [(_, second)] = attempt.documents(1, 1)
    assert "log" in first and "log" not in second
    assert attempt.log.is_due(time.monotonic() + 10)
    attempt.end("completed")
    [(_, last)] = attempt.documents(1, 1)
    assert last["log"] == {"omitted": 0, "lines": [[0, "INFO", "shop", "hello"]]}
