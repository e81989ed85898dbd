"""Launchers: registered by name, and asked by beat."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection

import pgbeat
from pgbeat.errors import ConditionError, UnknownLauncher
from pgbeat.jobs.running.task_exceptions import Skip
from pgbeat.schedules import launchers
from pgbeat.schedules.launchers import Context, GenericLauncher, JobRequest, Launcher, launcher
from pgbeat.schedules.model import Schedule
from tests.support.launchers import only_those_of

NOW = datetime(2025, 6, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def registry() -> Iterator[dict[str, type[Launcher]]]:
    """The registry without other modules' launchers."""
    with only_those_of(__name__) as found:
        yield found


class Always(Launcher):
    """Launches at every due time."""

    task = "tests.add"

    def check_conditions(self, ctx: Context) -> bool | Skip:
        return True


def test_a_launcher_is_registered_under_its_class_name_or_another() -> None:
    assert launcher("app.always")(Always) is Always
    assert launchers.find("app.always") is Always
    assert "Always" not in launchers.registered()
    assert launcher(Always) is launchers.find("Always") is Always
    assert launchers.registered() == [
        "Always",
        "GenericJobLauncher",
        "GenericLauncher",
        "app.always",
    ]
    assert launchers.find("GenericLauncher") is GenericLauncher is pgbeat.GenericLauncher


def test_two_launchers_have_two_names() -> None:
    def others() -> type[Launcher]:
        class Always(Launcher):
            def check_conditions(self, ctx: Context) -> bool | Skip:
                return False

        return Always

    launcher(Always)
    other = others()
    with pytest.raises(ValueError, match="two classes are called 'Always': ") as raised:
        launcher(other)
    assert "test_launchers.Always and " in str(raised.value)
    assert str(raised.value).endswith("rename one with @launcher('name')")
    assert launchers.find("Always") is Always
    launcher("Other")(other)
    assert launchers.find("Other") is other
    with pytest.raises(ValueError, match="two classes are called 'GenericLauncher'"):
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
    with pytest.raises(TypeError, match=r"@launcher needs a subclass of pgbeat\.Launcher, got "):
        launcher("thing")(thing)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Alway", "did you mean 'Always'? "),
        ("GenericLaunch", "did you mean 'GenericLauncher'? "),
        ("zzz", ""),
    ],
)
def test_an_unknown_launcher_is_told_what_there_is(name: str, hint: str) -> None:
    launcher(Always)
    with pytest.raises(UnknownLauncher) as raised:
        launchers.find(name)
    assert str(raised.value) == (
        f"launcher {name!r} is not registered; {hint}registered: Always, GenericJobLauncher, "
        "GenericLauncher"
    )


def row(**values: Any) -> Schedule:
    """A schedule's row, with what the test says and nothing else."""
    blank: dict[str, Any] = dict.fromkeys(Schedule._fields)
    return Schedule(**{**blank, "name": "s", "args": [], "kwargs": {}, **values})


def unconnected() -> Connection:
    raise AssertionError("nobody asked for a connection")


def context(**values: Any) -> Context:
    return Context(row(**values), NOW, NOW, unconnected)


class Told(Launcher):
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


WHOLE = JobRequest([5], {"x": 3}, {"priority": 9}, "other")


@pytest.mark.parametrize(
    ("data", "launched"),
    [
        (None, JobRequest([1], {"y": 2}, {}, "t")),
        ({"x": 3}, JobRequest((), {"x": 3}, {}, "t")),
        (WHOLE, WHOLE),
    ],
)
def test_what_is_prepared_is_launched(data: Any, launched: JobRequest) -> None:
    assert Told(data=data).launch(context(task="t", args=[1], kwargs={"y": 2})) == launched


@pytest.mark.parametrize(
    ("asked", "in_row", "in_class", "launched"),
    [("asked", "row", "class", "asked"), ("", "row", "class", "row"), ("", None, "class", "class")],
)
def test_the_task_is_the_requests_then_the_rows_then_the_launchers(
    asked: str, in_row: str | None, in_class: str, launched: str
) -> None:
    told = Told(data=JobRequest(task=asked))
    told.task = in_class
    request = told.launch(context(task=in_row))
    assert isinstance(request, JobRequest)
    assert request.task == launched


OTHER_DATA = (
    "Told.prepare_job_data returned {}; "
    "return a dict of keyword arguments or a JobRequest, or a list of JobRequests"
)


@pytest.mark.parametrize(
    ("told", "task", "sentence"),
    [
        ({}, None, "Told names no task; set its `task`, or the schedule's"),
        (
            {"condition": None},
            "t",
            "Told.check_conditions returned None; return True, False or Skip(reason)",
        ),
        *(
            ({"data": data}, "t", OTHER_DATA.format(kind))
            for data, kind in (("x", "str"), (7, "int"), ({1, 2}, "set"))
        ),
    ],
)
def test_an_answer_that_is_none_is_an_error(
    told: dict[str, Any], task: str | None, sentence: str
) -> None:
    with pytest.raises(ConditionError) as raised:
        Told(**told).launch(context(task=task))
    assert str(raised.value) == sentence


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


def test_nothing_is_prepared_where_the_condition_does_not_hold() -> None:
    """And preparation may skip, too."""
    sold_out = [Skip("sold out")]
    assert reason(Told(False, sold_out).launch(context(task="t"))) == "Told: conditions not met"
    assert reason(Told(data=sold_out).launch(context(task="t"))) == "sold out"


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
