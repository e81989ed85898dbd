"""Launchers: registered by name, asked in three ways, free to read and to remember."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from celery import Celery
from sqlalchemy import text

import pgbeat
from pgbeat.jobs.running.task_exceptions import Skip
from pgbeat.schedules.launchers import Context, JobRequest, Launcher, launcher
from tests.support.command_line import Sql, run, run_with
from tests.support.launchers import only_those_of, register
from tests.support.rows import make_job, make_lane, make_schedule
from tests.support.schedulers import Beat
from tests.unit.schedules.test_launchers import Always, _answer

NOW = datetime(2025, 6, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def registry() -> Iterator[dict[str, type[Launcher]]]:
    """The registry without other modules' launchers."""
    with only_those_of(__name__) as found:
        yield found


#: Adds a schedule of the launcher `Mine`, due since a second.
add = partial(make_schedule, due="-1 second", launcher="Mine", task=None)


def make_due(sql: Sql) -> None:
    sql("UPDATE pgbeat.schedules SET next_run = now() - interval '1 second'")


def mine(
    condition: Callable[[Context], Any], data: Callable[[Context], Any] = lambda ctx: {}
) -> None:
    """Registers a launcher of `tests.note` with that condition, and that preparation."""

    register("Mine", condition, data, "tests.note")


def ticks(sql: Sql) -> list[tuple[Any, ...]]:
    return sql("SELECT outcome, coalesce(reason, error) FROM pgbeat.ticks ORDER BY id")


def decided(
    beat: Beat, sql: Sql, condition: Callable[[Context], Any], data: Any = (), **columns: Any
) -> tuple[str, Any]:
    """The outcome of a schedule with that condition and preparation, and its reason or error."""
    mine(condition, lambda ctx: data or {})
    add(sql, **columns)
    assert beat().run_due() == 1
    [(outcome, said)] = ticks(sql)
    return outcome, said


def cursor(sql: Sql) -> Any:
    [(value,)] = sql("SELECT cursor FROM pgbeat.schedules")
    return value


def counting(answer: Any) -> Callable[[Context], Any]:
    """A condition that counts in its cursor how often it is asked."""

    def condition(ctx: Context) -> Any:
        ctx.cursor = (ctx.cursor or 0) + 1
        return _answer(answer)

    return condition


def asking(statement: str) -> Callable[[Context], Any]:
    """A condition that executes a statement, and holds."""

    def condition(ctx: Context) -> bool:
        ctx.connection.execute(text(statement))
        return True

    return condition


def test_the_answer_is_the_outcome(beat: Beat, sql: Sql) -> None:
    async def asked() -> bool:
        return False

    answers: dict[str, tuple[Any, str, str | None]] = {
        "true": (True, "launched", None),
        "skip": (Skip("nothing to do"), "skipped", "nothing to do"),
        "raised skip": ([Skip("nothing to do")], "skipped", "nothing to do"),
        "false": (False, "skipped", "Mine: conditions not met"),
        "truthy": (7.5, "launched", None),
        "error": ([ValueError("no such table")], "failed", "ValueError: no such table"),
        "exit": ([SystemExit("no such option")], "failed", "SystemExit: no such option"),
        "coroutine": (
            asked(),
            "failed",
            "Mine.check_conditions returned a coroutine; return True, False or Skip(reason)",
        ),
    }
    mine(lambda ctx: _answer(answers[ctx.schedule.name][0]))
    for name in answers:
        add(sql, name)
    beat().run_due()
    assert sorted(sql("SELECT schedule, outcome, coalesce(reason, error) FROM pgbeat.ticks")) == [
        (name, *tick) for name, (_, *tick) in sorted(answers.items())
    ]


@pytest.mark.parametrize("answer", [True, Skip("not yet"), [Skip("not yet")]])
def test_the_cursor_is_saved_with_a_launch_and_a_skip(beat: Beat, sql: Sql, answer: Any) -> None:
    mine(counting(answer))
    add(sql)
    scheduler = beat()
    for n in range(1, 4):
        make_due(sql)
        scheduler.run_due()
        assert cursor(sql) == n


def test_the_cursor_is_not_saved_with_a_failure(beat: Beat, sql: Sql) -> None:
    tick = decided(beat, sql, counting([ValueError("oops")]), cursor="41")
    assert tick == ("failed", "ValueError: oops")
    assert cursor(sql) == 41


def test_the_cursor_is_not_saved_where_the_launch_is_refused(beat: Beat, sql: Sql) -> None:
    sql("ALTER TABLE pgbeat.jobs ADD CHECK (schedule <> 's')")
    outcome, error = decided(beat, sql, counting(True), cursor="41")
    assert outcome == "failed" and "CheckViolation" in error
    assert cursor(sql) == 41


#: Policies that may forbid a launch that the launcher has asked for.
FORBIDDING: dict[str, dict[str, Any]] = {
    "overlap": {"overlap": "skip"},
    "lane": {"job_policy": {"lane": "l"}},
    "unique": {"job_policy": {"unique_key": "k"}},
}


@pytest.mark.parametrize("columns", FORBIDDING.values(), ids=FORBIDDING)
def test_neither_cursor_nor_snooze_is_saved_where_a_policy_forbids_the_launch(
    beat: Beat, sql: Sql, columns: dict[str, Any]
) -> None:
    mine(counting(True), lambda ctx: JobRequest(snooze=timedelta(minutes=5)))
    make_lane(sql)
    add(sql, **columns)
    scheduler = beat()
    scheduler.run_due()
    sql("UPDATE pgbeat.lanes SET paused_at = now()")
    make_due(sql)
    scheduler.run_due()
    assert [outcome for outcome, _ in ticks(sql)] == ["launched", "skipped"]
    assert cursor(sql) == 1
    assert sql("SELECT next_run > now() + interval '30 minutes' FROM pgbeat.schedules") == [(True,)]


@pytest.mark.parametrize(("task", "outcome"), [("tests.note", "skipped"), ("tests.gone", "failed")])
def test_the_cursor_is_not_saved_with_a_trigger_that_launches_nothing(
    app: Celery, sql: Sql, task: str, outcome: str
) -> None:
    mine(counting(True), lambda ctx: JobRequest(task=task))
    key = add(sql, overlap="queue_one")
    make_job(sql, "pending" if outcome == "skipped" else "completed", schedule_id=key)
    run_with(app, "trigger", "s")
    assert [tick[0] for tick in ticks(sql)] == [outcome]
    assert cursor(sql) is None


def test_the_cursor_is_not_saved_where_the_decision_is_dropped(beat: Beat, sql: Sql) -> None:
    """The row is changed while its condition is looked at; it is decided again, from the start."""
    seen: list[Any] = []

    def condition(ctx: Context) -> Any:
        seen.append(ctx.cursor)
        if len(seen) == 1:
            sql("UPDATE pgbeat.schedules SET owner = 'somebody'")
        return counting(True)(ctx)

    assert decided(beat, sql, condition) == ("launched", None)
    assert seen == [None, None]
    assert cursor(sql) == 1


def test_a_cursor_that_is_no_json_fails_the_tick(beat: Beat, sql: Sql) -> None:
    values = {"set": {1, 2}, "object": object(), "nan": float("nan"), "time": NOW}

    def condition(ctx: Context) -> Any:
        ctx.cursor = values[ctx.schedule.name]
        return True

    mine(condition)
    for name in values:
        add(sql, name)
    assert beat().run_due() == len(values)
    for outcome, error in ticks(sql):
        assert outcome == "failed" and error.startswith("the launcher's cursor is not JSON: ")


def test_the_cursor_may_be_forgotten(beat: Beat, sql: Sql) -> None:
    def condition(ctx: Context) -> Any:
        ctx.cursor = None
        return True

    decided(beat, sql, condition, cursor='{"seen": 7}')
    assert sql("SELECT cursor IS NULL FROM pgbeat.schedules") == [(True,)]


def test_the_connection_reads(beat: Beat, sql: Sql) -> None:
    sql("CREATE TABLE work (n int)")
    sql("INSERT INTO work VALUES (1), (2)")
    total = text("SELECT sum(n) FROM work")
    tick = decided(beat, sql, lambda ctx: Skip(f"{ctx.connection.scalar(total)} left"))
    assert tick == ("skipped", "3 left")


def test_the_connection_does_not_write(beat: Beat, sql: Sql) -> None:
    sql("CREATE TABLE work (n int)")
    statements = (
        "INSERT INTO work VALUES (1)",
        "DELETE FROM pgbeat.schedules",
        "CREATE TABLE mine (n int)",
        "SELECT nextval('pgbeat.ticks_id_seq')",
    )
    mine(lambda ctx: asking(ctx.args[0])(ctx))
    for number, statement in enumerate(statements):
        add(sql, f"s{number}", args=json.dumps([statement]))
    assert beat().run_due() == len(statements)
    for outcome, error in ticks(sql):
        assert outcome == "failed" and error.startswith("ReadOnlySqlTransaction: cannot execute ")


def test_the_connection_is_under_a_timeout(beat: Beat, sql: Sql, app: Celery) -> None:
    app.conf.pgbeat_condition_timeout = 0.1
    assert decided(beat, sql, asking("SELECT pg_sleep(60)")) == (
        "failed",
        "the condition took longer than 0.1 s (pgbeat_condition_timeout)",
    )


def test_every_decision_has_a_connection_as_new(beat: Beat, sql: Sql) -> None:
    """What one launcher sets on its connection, the next does not find."""
    said: list[Any] = []

    def condition(ctx: Context) -> Any:
        said.append(ctx.connection.scalar(text("SELECT current_setting('mine.own', true)")))
        ctx.connection.execute(text("SET LOCAL mine.own = 'left behind'"))
        return True

    mine(condition)
    add(sql)
    scheduler = beat()
    for _ in range(3):
        make_due(sql)
        scheduler.run_due()
    assert [value or None for value in said] == [None] * 3


def test_a_launcher_is_made_anew_for_each_decision(beat: Beat, sql: Sql) -> None:
    made: list[Launcher] = []

    class Mine(Always):
        def __init__(self) -> None:
            made.append(self)

    launcher(Mine)
    for name in ("a", "b"):
        add(sql, name)
    beat().run_due()
    assert len(made) == 2


def test_options_of_a_request_win_over_the_schedules(beat: Beat, sql: Sql) -> None:
    decided(
        beat,
        sql,
        lambda ctx: True,
        JobRequest(kwargs={"text": "x"}, options={"priority": 9, "queue": "fast"}),
        options='{"priority": 1, "shadow": "night shift"}',
        queue="slow",
    )
    [(payload, queue)] = sql(
        "SELECT payload, name FROM kombu_message m JOIN kombu_queue q ON q.id = m.queue_id"
    )
    message = json.loads(payload)
    assert message["properties"]["priority"] == 9
    assert message["headers"]["shadow"] == "night shift"
    assert queue == "fast"
    assert sql("SELECT task, kwargs, queue, created_by FROM pgbeat.jobs") == [
        ("tests.note", {"text": "x"}, "fast", "system:scheduler:Mine")
    ]


def test_the_queue_is_the_rows_where_the_request_has_none(beat: Beat, sql: Sql) -> None:
    mine(lambda ctx: True)
    add(sql, options='{"queue": "optional"}', queue="slow")
    add(sql, "other", queue="slow")
    beat().run_due()
    assert sql("SELECT schedule, queue FROM pgbeat.jobs ORDER BY schedule") == [
        ("other", "slow"),
        ("s", "optional"),
    ]


def test_nothing_that_a_launcher_gives_holds_up_other_schedules(beat: Beat, sql: Sql) -> None:
    given: dict[str, tuple[JobRequest | Exception, str]] = {
        "long queue": (JobRequest(options={"queue": "q" * 201}), "queue"),
        "queue with NUL": (JobRequest(options={"queue": "q\0"}), "NUL"),
        "half a queue": (JobRequest(options={"queue": "q\ud800"}), "half a pair"),
        "no queue": (JobRequest(options={"queue": 5}), "queue"),
        "headers": (JobRequest(options={"headers": [1]}), "headers"),
        "args": (JobRequest(args="x"), "args"),
        "kwargs": (JobRequest(kwargs=cast(Any, [1])), "kwargs"),
        "priority": (JobRequest(options={"priority": "x"}), "priority"),
        "kwargs with NUL": (JobRequest(kwargs={"text": "q\0"}), "NUL"),
        "no snooze": (JobRequest(snooze=cast(Any, "soon")), "tzinfo"),
        "naive snooze": (JobRequest(snooze=datetime(2030, 1, 1)), "tzinfo"),  # noqa: DTZ001
        "unknown task": (JobRequest(task="tests.ad"), "'tests.ad'"),
        "unknown option": (JobRequest(options={"producer": 1}), "'producer'"),
        "wrong kwargs": (JobRequest(kwargs={"z": 1}), "TypeError: "),
        "no JSON": (JobRequest(kwargs={"text": {1}}), "set is not JSON"),
        "skip": (Skip("q\0\ud800"), r"q\0\ud800"),
        "error": (ValueError("q\0\ud800"), r"ValueError: q\0\ud800"),
    }

    def give(ctx: Context) -> JobRequest:
        found, _ = given[ctx.schedule.name]
        if isinstance(found, Exception):
            raise found
        return found

    mine(lambda ctx: True, give)
    launcher("Fine")(Always)
    for name in given:
        add(sql, name)
    add(sql, "fine", launcher="Fine")
    first = beat()
    first.run_due()
    decided: dict[str, str] = dict(
        sql("SELECT schedule, coalesce(reason, error, outcome) FROM pgbeat.ticks")
    )
    assert decided.pop("fine") == "launched"
    assert decided.keys() == given.keys()
    for name, (_, error) in given.items():
        assert error in decided[name]
    assert sql("SELECT count(*) FROM kombu_message") == [(1,)]
    first.close()
    add(sql, "later", launcher="Fine")
    beat().run_due()  # as the next leader in this process
    assert sql("SELECT outcome FROM pgbeat.ticks WHERE schedule = 'later'") == [("launched",)]


def test_generic_job_launcher_is_an_alias(database: str, sql: Sql, tmp_path: Path) -> None:
    assert pgbeat.GenericJobLauncher is pgbeat.GenericLauncher
    make_schedule(sql, launcher="GenericJobLauncher")
    assert sql("SELECT launcher FROM pgbeat.schedules") == [("GenericLauncher",)]
    path = tmp_path / "s.yml"
    path.write_text("schedules:\n  f: {launcher: GenericJobLauncher, task: t, every: 1 hour}\n")
    assert run(database, "sync", str(path)).exit_code == 0
    assert run(database, "sync", "--plan", str(path)).exit_code == 0
