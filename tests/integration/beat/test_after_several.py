"""Schedules that come after several others: all of them, or any, since their last decision."""

from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection

from pgbeat.schedules import control
from pgbeat.testing import Scheduler
from tests.support.command_line import run
from tests.support.rows import Sql, make_job, unit_on
from tests.support.schedulers import HOUR, START, At, add, row
from tests.support.threads import waiting

END = "UPDATE pgbeat.jobs SET state = %s, finished_at = now() WHERE id = %s"


def both(sql: Sql, **values: Any) -> dict[str, int]:
    """Adds schedules `a` and `b`, which nothing but the test launches, and `s` after both."""
    ids = {name: add(sql, name, next_run="2100-01-01") for name in ("a", "b")}
    return ids | {"s": add(sql, after="a\nb", starts_at=None, **values)}


def ends(sql: Sql, ids: dict[str, int], *names: str, state: str = "completed") -> None:
    for name in names:
        job_id = make_job(sql, "running", schedule_id=ids[name], schedule=name)
        sql(END, state, job_id)


def decided(scheduler: Scheduler) -> list[str]:
    """Returns the outcomes of what is due."""
    before = len(scheduler.ticks)
    scheduler.run_due()
    return [tick.outcome for tick in scheduler.ticks[before:]]


def test_all_of_them_must_have_ended_since_its_last_decision(sql: Sql, at: At) -> None:
    ids, scheduler = both(sql), at()
    for names, expected in (
        ("a", []), ("aa", []), ("b", ["launched"]), ("b", []), ("bb", []), ("a", ["launched"]),
    ):  # fmt: skip
        ends(sql, ids, *names)
        assert decided(scheduler) == expected, names
    assert [tick.missed for tick in scheduler.ticks] == [0, 0]
    assert row(sql, "after_done, upstream_ended") == ([], 0)


def test_any_of_them_is_enough(sql: Sql, at: At) -> None:
    ids, scheduler = both(sql, after_match="any"), at()
    for names, missed in (("a", 0), ("b", 0), ("ab", 1)):
        ends(sql, ids, *names)
        assert decided(scheduler) == ["launched"]
        assert scheduler.ticks[-1].missed == missed
    assert scheduler.ticks[-1].note == "1 more jobs of 'a', 'b' ended meanwhile"


def test_one_whose_jobs_fail_or_whose_times_are_skipped_is_waited_for(sql: Sql, at: At) -> None:
    ids, scheduler = both(sql), at()
    sql("UPDATE pgbeat.schedules SET condition_sql = 'SELECT false' WHERE name = 'a'")
    ends(sql, ids, "b")
    sql("UPDATE pgbeat.schedules SET next_run = %s WHERE name = 'a'", START)
    assert decided(scheduler) == ["skipped"]
    ends(sql, ids, "a", state="failed")
    assert decided(scheduler) == []
    [(reason,)] = sql("SELECT reason FROM pgbeat.ticks WHERE schedule = 's'")
    assert reason.startswith("after a: its job ") and reason.endswith(" failed")
    ends(sql, ids, "a")
    assert decided(scheduler) == ["launched"]


def test_one_that_is_paused_is_waited_for(
    sql: Sql, at: At, connection: Connection, database: str
) -> None:
    ids, scheduler = both(sql), at()
    control.pause(unit_on(connection), "a")
    ends(sql, ids, "b")
    assert decided(scheduler) == []
    explained = run(database, "explain", "s").stdout
    assert "it comes after a and b: a is paused, b has ended." in explained
    control.resume(unit_on(connection), "a")
    ends(sql, ids, "a")
    assert decided(scheduler) == ["launched"]


def test_what_ends_while_it_is_paused_does_not_count(
    sql: Sql, at: At, connection: Connection
) -> None:
    ids, scheduler = both(sql), at()
    ends(sql, ids, "a")
    control.pause(unit_on(connection), "s")
    ends(sql, ids, "b")
    control.resume(unit_on(connection), "s")
    assert decided(scheduler) == []
    ends(sql, ids, "b")
    assert decided(scheduler) == ["launched"]


def test_a_person_s_launch_uses_up_nothing_and_a_skip_does(sql: Sql, at: At) -> None:
    ids, scheduler = both(sql), at()
    ends(sql, ids, "a")
    sql("UPDATE pgbeat.schedules SET next_run = %s WHERE name = 's'", START)
    assert decided(scheduler) == ["launched"]
    sql("UPDATE pgbeat.schedules SET condition_sql = 'SELECT false' WHERE name = 's'")
    ends(sql, ids, "b")
    assert decided(scheduler) == ["skipped"]
    sql("UPDATE pgbeat.schedules SET condition_sql = NULL WHERE name = 's'")
    ends(sql, ids, "b")
    assert decided(scheduler) == []
    ends(sql, ids, "a")
    assert decided(scheduler) == ["launched"]


def test_a_decision_that_failed_is_tried_again(sql: Sql, at: At) -> None:
    ids, scheduler = both(sql, condition_sql="SELECT 1/0", retry_base="1 hour"), at()
    ends(sql, ids, "a", "b")
    assert decided(scheduler) == ["failed"]
    sql("UPDATE pgbeat.schedules SET condition_sql = NULL WHERE name = 's'")
    [retry] = scheduler.run_until(START + 2 * HOUR)
    assert (retry.outcome, retry.trigger) == ("launched", "retry")
    ends(sql, ids, "a")
    assert decided(scheduler) == []


@pytest.mark.parametrize(
    ("max_retries", "changes"),
    [(1, []), (1, ["enabled = true"]), (9, ["paused_at = now()", "paused_at = NULL"])],
    ids=["probed", "enabled", "resumed"],
)
def test_what_a_decision_that_failed_used_up_is_waited_for_again(
    sql: Sql, at: At, max_retries: int, changes: list[str]
) -> None:
    failing = {"condition_sql": "SELECT 1/0", "max_retries": max_retries}
    ids, scheduler = both(sql, probe_after="1 hour", **failing), at()
    ends(sql, ids, "a", "b")
    assert decided(scheduler) == ["failed"]
    for change in ["condition_sql = NULL", *changes]:
        sql(f"UPDATE pgbeat.schedules SET {change} WHERE name = 's'")
    probes = scheduler.run_until(START + 2 * HOUR)
    assert [tick.outcome for tick in probes] == ([] if changes else ["launched"])
    ends(sql, ids, "a")
    assert decided(scheduler) == []
    ends(sql, ids, "b")
    assert decided(scheduler) == ["launched"]


def test_two_that_end_at_once_see_each_other(sql: Sql, database: str) -> None:
    ids = both(sql)
    jobs = [make_job(sql, "running", schedule_id=ids[name], schedule=name) for name in "ab"]
    with psycopg.connect(database) as one, psycopg.connect(database, autocommit=True) as two:
        one.execute(END, ["completed", jobs[0]])
        with waiting(sql, lambda: two.execute(END, ["completed", jobs[1]])):
            one.commit()
    assert row(sql, "upstream_ended, next_run IS NULL") == (1, False)


def test_a_name_that_nothing_has_is_waited_for(sql: Sql, at: At) -> None:
    ids, scheduler = both(sql), at()
    sql("UPDATE pgbeat.schedules SET after = %s WHERE name = 's'", " a \r\n\nlater\na")
    assert row(sql, "after") == ("a\nlater",)
    ends(sql, ids, "a", "b")
    assert decided(scheduler) == []
    ids["later"] = add(sql, "later", next_run="2100-01-01")
    ends(sql, ids, "later")
    assert decided(scheduler) == ["launched"]


REFUSED = {
    "a circle: a after x after s after a": {"name": "a", "after": "z\nx"},
    "a circle: x after x": {"name": "x", "after": "z\nx"},
    "after has 21 names, and may have 20": {"name": "n", "after": "\n".join(map(str, range(21)))},
    "after_match is 'both'; it must be all or any": {
        "name": "n", "after": "a", "after_match": "both"
    },
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_refused(sql: Sql, message: str) -> None:
    add(sql, after="a\nb")
    if "x after s" in message:
        add(sql, "x", after="y\ns")
    with pytest.raises(psycopg.errors.CheckViolation, match=message):
        add(sql, **REFUSED[message])


def test_many_ways_to_the_same_one_are_no_circle(sql: Sql) -> None:
    """Each of 40 layers has two that come after both of the one before: a million million ways."""
    for layer in range(1, 41):
        for side in "ab":
            add(sql, f"{side}{layer}", after=f"a{layer - 1}\nb{layer - 1}")
    with pytest.raises(psycopg.errors.CheckViolation, match="a circle"):
        add(sql, "a0", after="a40")
