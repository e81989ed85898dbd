"""Launchers: registered by name, asked in three ways, free to read and to remember."""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

import pytest
from celery import Celery
from sqlalchemy import Connection, text

import pgbeat
from pgbeat.beat.scheduler import Scheduler
from pgbeat.errors import ConditionError, UnknownLauncher
from pgbeat.jobs.task_exceptions import Skip
from pgbeat.schedules import launchers
from pgbeat.schedules.launchers import Context, GenericLauncher, JobRequest, Launcher, launcher
from pgbeat.schedules.model import Schedule
from tests.support.rows import make_schedule

Beat = Callable[..., Scheduler]
Sql = Callable[..., list[tuple[Any, ...]]]

NOW = datetime(2025, 6, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def registry() -> Iterator[dict[str, type[Launcher]]]:
    """The registry without other modules' launchers, afterwards as it was before."""
    before = dict(launchers._registry)
    for name, known in before.items():
        if known.__module__ not in {launchers.__name__, __name__}:
            del launchers._registry[name]
    yield launchers._registry
    launchers._registry.clear()
    launchers._registry.update(before)


# -- registration -------------------------------------------------------------------------------


class Always(Launcher):
    """Launches at every due time."""

    task = "tests.add"

    def check_conditions(self, ctx: Context) -> bool | Skip:
        return True


def test_a_launcher_is_registered_under_its_class_name() -> None:
    assert launcher(Always) is Always
    assert launchers.find("Always") is Always
    assert launchers.registered() == ["Always", "GenericLauncher"]


def test_a_launcher_is_registered_under_the_name_given() -> None:
    assert launcher("app.always")(Always) is Always
    assert launchers.find("app.always") is Always
    assert "Always" not in launchers.registered()


def test_the_generic_launcher_is_always_there() -> None:
    assert launchers.find("GenericLauncher") is GenericLauncher is pgbeat.GenericLauncher


def test_two_launchers_have_two_names() -> None:
    def others() -> type[Launcher]:
        class Always(Launcher):
            def check_conditions(self, ctx: Context) -> bool | Skip:
                return False

        return Always

    launcher(Always)
    other = others()
    with pytest.raises(ValueError, match="two launchers are called 'Always': ") as raised:
        launcher(other)
    assert "test_launchers.Always and " in str(raised.value)
    assert str(raised.value).endswith("give one another name with @launcher('name')")
    assert launchers.find("Always") is Always
    launcher("Other")(other)
    assert launchers.find("Other") is other


def test_the_name_of_the_generic_launcher_is_taken() -> None:
    with pytest.raises(ValueError, match="two launchers are called 'GenericLauncher'"):
        launcher("GenericLauncher")(Always)


def test_a_module_that_is_imported_again_registers_the_new_class() -> None:
    def load() -> type[Launcher]:
        class Reloaded(Launcher):
            def check_conditions(self, ctx: Context) -> bool | Skip:
                return True

        return launcher(Reloaded)

    first, second = load(), load()
    assert first is not second
    assert launchers.find("Reloaded") is second


@pytest.mark.parametrize("thing", [int, object(), Always(), lambda ctx: True])
def test_only_launchers_are_registered(thing: Any) -> None:
    with pytest.raises(TypeError, match=r"@launcher is for subclasses of pgbeat\.Launcher, not "):
        launcher("thing")(thing)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("Alway", "did you mean 'Always'? "), ("GenericLaunch", "did you mean 'GenericLauncher'? "),
     ("zzz", "")],
)  # fmt: skip
def test_an_unknown_launcher_is_told_what_there_is(name: str, hint: str) -> None:
    launcher(Always)
    with pytest.raises(UnknownLauncher) as raised:
        launchers.find(name)
    assert str(raised.value) == (
        f"launcher {name!r} is not registered; {hint}registered: Always, GenericLauncher"
    )


# -- how one is asked ---------------------------------------------------------------------------


def row(**values: Any) -> Schedule:
    """A schedule's row, with what the test says and nothing else."""
    blank: dict[str, Any] = dict.fromkeys(Schedule._fields)
    return Schedule(**{**blank, "name": "s", "args": [], "kwargs": {}, **values})


def unconnected() -> Connection:
    raise AssertionError("nobody asked for a connection")


def context(**values: Any) -> Context:
    return Context(row(**values), NOW, NOW, unconnected)


class Told(Launcher):
    """Answers what it is told."""

    def __init__(self, condition: Any = True, data: Any = None) -> None:
        self.condition, self.data = condition, data

    def check_conditions(self, ctx: Context) -> Any:
        return _answer(self.condition)

    def prepare_job_data(self, ctx: Context) -> Any:
        return _answer(self.data) if self.data is not None else super().prepare_job_data(ctx)


def _answer(value: Any) -> Any:
    """The value; raised, if it is in a list."""
    if isinstance(value, list):
        raise value[0]
    return value


def reason(answer: JobRequest | list[JobRequest] | Skip) -> str:
    assert isinstance(answer, Skip)
    return answer.reason


def test_true_launches_with_the_rows_arguments() -> None:
    request = Told().launch(context(task="t", args=[1], kwargs={"x": 2}))
    assert request == JobRequest([1], {"x": 2}, {}, "t")


def test_a_dict_is_the_keyword_arguments() -> None:
    request = Told(data={"x": 3}).launch(context(task="t", args=[1], kwargs={"y": 2}))
    assert request == JobRequest((), {"x": 3}, {}, "t")


def test_a_request_is_all_there_is_to_say() -> None:
    data = JobRequest([5], {"x": 3}, {"priority": 9}, "other")
    assert Told(data=data).launch(context(task="t", args=[1])) == data


@pytest.mark.parametrize(
    ("asked", "in_row", "in_class", "launched"),
    [
        ("asked", "row", "class", "asked"),
        ("", "row", "class", "row"),
        ("", None, "class", "class"),
    ],
)
def test_the_task_is_the_requests_then_the_rows_then_the_launchers(
    asked: str, in_row: str | None, in_class: str, launched: str
) -> None:
    told = Told(data=JobRequest(task=asked))
    told.task = in_class
    request = told.launch(context(task=in_row))
    assert isinstance(request, JobRequest)
    assert request.task == launched


def test_no_task_at_all_is_an_error() -> None:
    with pytest.raises(ConditionError) as raised:
        Told().launch(context())
    assert str(raised.value) == "Told names no task; set its `task`, or the schedule's"


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        (Skip("nothing to do"), "nothing to do"),
        ([Skip("nothing to do")], "nothing to do"),
        (Skip(), "conditions not met"),
        (Skip(""), "conditions not met"),
        (False, "Told: conditions not met"),
        (0, "Told: conditions not met"),
    ],
    ids=["returned", "raised", "no reason", "empty reason", "False", "falsy"],
)
def test_a_condition_that_does_not_hold_skips_with_its_reason(condition: Any, said: str) -> None:
    assert reason(Told(condition).launch(context(task="t"))) == said


def test_preparation_may_skip_too() -> None:
    assert reason(Told(data=[Skip("sold out")]).launch(context(task="t"))) == "sold out"


def test_nothing_is_prepared_where_the_condition_does_not_hold() -> None:
    told = Told(condition=False, data=[AssertionError("prepared")])
    assert reason(told.launch(context(task="t"))) == "Told: conditions not met"


def test_a_condition_that_forgets_to_answer_is_an_error() -> None:
    with pytest.raises(ConditionError) as raised:
        Told(condition=None).launch(context(task="t"))
    assert str(raised.value) == (
        "Told.check_conditions returned None; return True, False or Skip(reason)"
    )


@pytest.mark.parametrize("data", ["x", 7, {1, 2}])
def test_a_preparation_that_gives_something_else_is_an_error(data: Any) -> None:
    with pytest.raises(ConditionError) as raised:
        Told(data=data).launch(context(task="t"))
    assert str(raised.value) == (
        f"Told.prepare_job_data returned {type(data).__name__}; "
        "return a dict of keyword arguments or a JobRequest, or a list of JobRequests"
    )


@pytest.mark.parametrize("at", ["condition", "data"])
def test_what_is_raised_is_passed_on(at: str) -> None:
    with pytest.raises(ZeroDivisionError):
        Told(**{at: [ZeroDivisionError()]}).launch(context(task="t"))


def test_the_context_tells_what_is_known() -> None:
    ctx = context(last_run=NOW, last_success=None, cursor={"seen": 7})
    assert (ctx.last_run, ctx.last_success, ctx.due_at, ctx.now) == (NOW, None, NOW, NOW)
    assert ctx.cursor == {"seen": 7}


def test_the_connection_is_opened_once_and_only_when_it_is_used() -> None:
    opened: list[object] = []

    def connect() -> Connection:
        opened.append(object())
        return opened[-1]  # type: ignore[return-value]

    ctx = Context(row(), NOW, NOW, connect)
    assert opened == []
    assert ctx.connection is ctx.connection
    assert len(opened) == 1


# -- in a tick ----------------------------------------------------------------------------------

DUE = "now() - interval '1 second'"


#: Adds a schedule of the launcher `Mine`, due since a second.
add = partial(make_schedule, due="-1 second", launcher="Mine", task=None)


def make_due(sql: Sql) -> None:
    sql(f"UPDATE pgbeat.schedules SET next_run = {DUE}")


def mine(
    condition: Callable[[Context], Any], data: Callable[[Context], Any] = lambda ctx: {}
) -> None:
    """Registers a launcher of `tests.note` with that condition, and that preparation."""

    class Mine(Launcher):
        task = "tests.note"

        def check_conditions(self, ctx: Context) -> bool | Skip:
            return condition(ctx)  # type: ignore[no-any-return]

        def prepare_job_data(self, ctx: Context) -> Mapping[str, Any] | JobRequest:
            return data(ctx)  # type: ignore[no-any-return]

    launcher(Mine)


def ticks(sql: Sql) -> list[tuple[Any, ...]]:
    return sql("SELECT outcome, coalesce(reason, error) FROM pgbeat.ticks ORDER BY id")


def cursor(sql: Sql) -> Any:
    [(value,)] = sql("SELECT cursor FROM pgbeat.schedules")
    return value


def remember(ctx: Context) -> None:
    ctx.cursor = (ctx.cursor or 0) + 1


@pytest.mark.parametrize(
    ("answer", "tick"),
    [
        (True, ("launched", None)),
        (Skip("nothing to do"), ("skipped", "nothing to do")),
        ([Skip("nothing to do")], ("skipped", "nothing to do")),
        (False, ("skipped", "Mine: conditions not met")),
        (7.5, ("launched", None)),
        ([ValueError("no such table")], ("failed", "ValueError: no such table")),
    ],
    ids=["true", "skip", "raised skip", "false", "truthy", "error"],
)
def test_the_answer_is_the_outcome(
    beat: Beat, sql: Sql, answer: Any, tick: tuple[str, str | None]
) -> None:
    mine(lambda ctx: _answer(answer))
    add(sql)
    assert beat().run_due() == 1
    assert ticks(sql) == [tick]


@pytest.mark.parametrize("answer", [True, Skip("not yet"), [Skip("not yet")]])
def test_the_cursor_is_saved_with_a_launch_and_a_skip(beat: Beat, sql: Sql, answer: Any) -> None:
    def condition(ctx: Context) -> Any:
        remember(ctx)
        return _answer(answer)

    mine(condition)
    add(sql)
    scheduler = beat()
    for n in range(1, 4):
        make_due(sql)
        scheduler.run_due()
        assert cursor(sql) == n


def test_the_cursor_is_not_saved_with_a_failure(beat: Beat, sql: Sql) -> None:
    def condition(ctx: Context) -> Any:
        remember(ctx)
        raise ValueError("oops")

    mine(condition)
    add(sql, cursor="41")
    beat().run_due()
    assert ticks(sql) == [("failed", "ValueError: oops")]
    assert cursor(sql) == 41


def test_the_cursor_is_not_saved_where_the_launch_is_refused(
    beat: Beat, sql: Sql, app: Celery
) -> None:
    def condition(ctx: Context) -> Any:
        remember(ctx)
        return True

    mine(condition)
    add(sql, cursor="41")
    sql("ALTER TABLE pgbeat.jobs ADD CHECK (schedule <> 's')")
    beat().run_due()
    [(outcome, error)] = ticks(sql)
    assert outcome == "failed" and "CheckViolation" in error
    assert cursor(sql) == 41


def test_the_cursor_is_not_saved_where_the_decision_is_dropped(beat: Beat, sql: Sql) -> None:
    """The row is changed while its condition is looked at; it is decided again, from the start."""
    seen: list[Any] = []

    def condition(ctx: Context) -> Any:
        seen.append(ctx.cursor)
        if len(seen) == 1:
            sql("UPDATE pgbeat.schedules SET owner = 'somebody'")
        remember(ctx)
        return True

    mine(condition)
    add(sql)
    scheduler = beat()
    assert scheduler.run_due() == 1
    assert seen == [None, None]
    assert cursor(sql) == 1
    assert ticks(sql) == [("launched", None)]


@pytest.mark.parametrize("value", [{1, 2}, object(), float("nan"), NOW])
def test_a_cursor_that_is_no_json_fails_the_tick(beat: Beat, sql: Sql, value: Any) -> None:
    def condition(ctx: Context) -> Any:
        ctx.cursor = value
        return True

    mine(condition)
    add(sql)
    beat().run_due()
    [(outcome, error)] = ticks(sql)
    assert outcome == "failed" and error.startswith("the launcher's cursor is not JSON: ")


def test_the_cursor_may_be_forgotten(beat: Beat, sql: Sql) -> None:
    def condition(ctx: Context) -> Any:
        ctx.cursor = None
        return True

    mine(condition)
    add(sql, cursor='{"seen": 7}')
    beat().run_due()
    assert sql("SELECT cursor IS NULL FROM pgbeat.schedules") == [(True,)]


def test_the_connection_reads(beat: Beat, sql: Sql) -> None:
    sql("CREATE TABLE work (n int)")
    sql("INSERT INTO work VALUES (1), (2)")
    mine(
        lambda ctx: Skip(f"{ctx.connection.scalar(text('SELECT sum(n) FROM work'))} left"),
    )
    add(sql)
    beat().run_due()
    assert ticks(sql) == [("skipped", "3 left")]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO work VALUES (1)",
        "DELETE FROM pgbeat.schedules",
        "CREATE TABLE mine (n int)",
        "SELECT nextval('pgbeat.ticks_id_seq')",
    ],
)
def test_the_connection_does_not_write(beat: Beat, sql: Sql, statement: str) -> None:
    sql("CREATE TABLE work (n int)")

    def condition(ctx: Context) -> Any:
        ctx.connection.execute(text(statement))
        return True

    mine(condition)
    add(sql)
    beat().run_due()
    [(outcome, error)] = ticks(sql)
    assert outcome == "failed"
    assert error.startswith("ReadOnlySqlTransaction: cannot execute ")


def test_the_connection_is_under_a_timeout(beat: Beat, sql: Sql, app: Celery) -> None:
    app.conf.pgbeat_condition_timeout = 0.1

    def condition(ctx: Context) -> Any:
        ctx.connection.execute(text("SELECT pg_sleep(60)"))
        return True

    mine(condition)
    add(sql)
    beat().run_due()
    assert ticks(sql) == [
        ("failed", "the condition took longer than 0.1 s (pgbeat_condition_timeout)")
    ]


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
    mine(
        lambda ctx: True,
        lambda ctx: JobRequest(kwargs={"text": "x"}, options={"priority": 9, "queue": "fast"}),
    )
    add(sql, options='{"priority": 1, "shadow": "night shift"}', queue="slow")
    beat().run_due()
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
        ("other", "slow"), ("s", "optional"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (JobRequest(task="tests.ad"), "task 'tests.ad' is not registered; did you mean 'tests.a"),
        (JobRequest(options={"producer": 1}), "options has 'producer', which is no publish option"),
        (JobRequest(kwargs={"z": 1}), "TypeError: note() got an unexpected keyword argument 'z'"),
        (JobRequest(kwargs={"text": {1}}), "is not JSON serializable"),
    ],
)
def test_a_request_that_can_not_be_launched_fails(
    beat: Beat, sql: Sql, request_: JobRequest, error: str
) -> None:
    mine(lambda ctx: True, lambda ctx: request_)
    add(sql)
    beat().run_due()
    [(outcome, said)] = ticks(sql)
    assert outcome == "failed"
    assert error in said
    assert sql("SELECT count(*) FROM kombu_message") == [(0,)]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (JobRequest(options={"queue": "q" * 201}), "a queue's name has 1 to 200 characters"),
        (JobRequest(options={"queue": "q\0"}), "options hold a character that Postgres"),
        (JobRequest(options={"queue": "q\ud800"}), "NUL, or half a one"),
        (JobRequest(options={"queue": 5}), "options: queue is 5; it is to be a queue's name"),
        (JobRequest(options={"headers": [1]}), "options: headers is [1]; it is to be an object"),
        (JobRequest(args="x"), "args is 'x'; it is to be a list"),
        (JobRequest(kwargs=cast(Any, [1])), "kwargs is [1]; it is to be a mapping"),
        (JobRequest(options={"priority": "x"}), "options: priority is 'x'; it is to be a whole"),
        (JobRequest(kwargs={"text": "q\0"}), "a character that Postgres can't keep: NUL"),
        (JobRequest(snooze=cast(Any, "soon")), "with a tzinfo, got 'soon'"),
        (JobRequest(snooze=datetime(2030, 1, 1)), "with a tzinfo"),  # noqa: DTZ001
        (Skip("q\0\ud800"), r"q\0\ud800"),
        (ValueError("q\0\ud800"), r"ValueError: q\0\ud800"),
    ],
)
def test_nothing_that_a_launcher_gives_holds_up_other_schedules(
    beat: Beat, sql: Sql, given: JobRequest | Exception, error: str
) -> None:
    def give(ctx: Context) -> JobRequest:
        if isinstance(given, Exception):
            raise given
        return given

    mine(lambda ctx: True, give)
    launcher("Fine")(Always)
    add(sql)
    add(sql, "fine", launcher="Fine")
    first = beat()
    first.run_due()
    decided: dict[str, str] = dict(
        sql("SELECT schedule, coalesce(reason, error, outcome) FROM pgbeat.ticks")
    )
    assert decided["fine"] == "launched"
    assert error in decided["s"]
    first.close()
    add(sql, "later", launcher="Fine")
    beat().run_due()  # as the next leader in this process
    assert sql("SELECT outcome FROM pgbeat.ticks WHERE schedule = 'later'") == [("launched",)]
