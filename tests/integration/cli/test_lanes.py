"""`pgbeat lanes` and `pgbeat direct`."""

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pgbeat.database import channels
from pgbeat.jobs.lanes.concurrency import ConcurrencyPolicy, Work, concurrency_policy
from tests.integration.jobs.test_lanes import reserve
from tests.support.command_line import read, refused, run, run_with
from tests.support.databases import connected
from tests.support.lanes import Lanes

Sql = Callable[..., list[tuple[Any, ...]]]


@concurrency_policy("tests.evenings")
class Evenings(ConcurrencyPolicy):
    """Registers a policy of the app."""

    def __init__(self, hour: int = 20) -> None:
        self.hour = hour

    def can_dispatch(self, job: Work) -> bool | str:
        return f"not before {self.hour}"


# -- set


def test_set_makes_a_lane_and_changes_what_is_given(database: str) -> None:
    result = run(database, "lanes", "set", "gpu", "--limit", "2")
    assert result.stdout == "Made lane 'gpu': 2 at once.\n"
    result = run(
        database,
        "lanes",
        "set",
        "gpu",
        "--rate",
        "10/minute",
        "--rate-key",
        "task",
        "--policy",
        "resources",
        "--options",
        '{"gpu": 2}',
    )
    assert result.stdout == (
        "Changed lane 'gpu': 2 at once, 10/minute of each task, policy resources {\"gpu\": 2}.\n"
    )
    assert run(database, "lanes", "set", "gpu", "--limit", "2").stdout.startswith(
        "Lane 'gpu' is like that already: 2 at once"
    )
    row = read(database, "lanes", "set", "gpu", "--no-rate", "--no-policy", "--no-limit")
    wanted: dict[str, Any] = {
        "max_running": None,
        "rate": None,
        "rate_key": None,
        "policy": None,
        "options": {},
    }
    assert row.items() >= wanted.items()


def test_a_rate_holds_for_a_time(database: str) -> None:
    run(database, "lanes", "set", "l", "--rate", "90/minute", "--rate-unit", "tokens")
    result = run(database, "lanes", "set", "l", "--rate", "5/minute", "--for", "10 minutes")
    assert "5 tokens/minute, then 90 tokens/minute" in result.stdout
    assert "5 tokens/minute for " in run(database, "lanes", "show", "l").stdout
    row = read(database, "lanes", "set", "l", "--no-rate")
    assert (row["rate"], row["rate_unit"], row["temporary_until"]) == (None, None, None)


def test_set_makes_a_lane_fair(database: str) -> None:
    result = run(database, "lanes", "set", "l", "--limit-per", "kwargs.tenant", "2")
    assert result.stdout == "Made lane 'l': no limit, turns by tenant (2 slots each).\n"
    result = run(database, "lanes", "set", "l", "--fair-by", "task")
    assert result.stdout == "Changed lane 'l': no limit, turns by task.\n"
    row = read(database, "lanes", "set", "l", "--no-fair")
    assert (row["fair_by"], row["max_per_key"]) == (None, None)


def test_another_policy_has_options_of_its_own(database: str) -> None:
    run(database, "lanes", "set", "l", "--policy", "tags", "--options", '{"heavy": 1}')
    assert "'tasks'" in refused(run(database, "lanes", "set", "l", "--policy", "tasks"))
    result = run(database, "lanes", "set", "l", "--options", '{"heavy": 2}')
    assert 'policy tags {"heavy": 2}' in result.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["l", "--rate", "10"], "'--rate'"),
        (["l", "--policy", "tests.evenings", "--options", '{"our": 1}'], "'our'"),
        (["l", "--options", "[]"], "'--options'"),
        (["l", "--limit", "2", "--no-limit"], "--no-limit"),
        (["l", "--rate-key", "task", "--no-rate"], "--no-rate"),
        (["l", "--for", "1 hour"], "'--for'"),
        (["l", "--rate", "1/m", "--for", "soon"], "'--for'"),
        (["l", "--limit-per", "task", "2", "--no-fair"], "--no-fair"),
        (["l", "--limit-per", "task", "2", "--fair-by", "task"], "--fair-by"),
        (["l"], "--no-limit"),
        (["l", "--fair-by", "task"], "--no-limit"),
    ],
)
def test_set_refuses_what_is_wrong(
    database: str, sql: Sql, arguments: list[str], named: str
) -> None:
    assert named in refused(run(database, "lanes", "set", *arguments))
    assert sql("SELECT count(*) FROM pgbeat.lanes") == [(0,)]


def test_set_says_what_it_would_do(database: str, sql: Sql) -> None:
    result = run(database, "lanes", "set", "l", "--limit", "1", "--dry-run")
    assert result.stdout == "Would make lane 'l': 1 at once.\n"
    assert sql("SELECT count(*) FROM pgbeat.lanes") == [(0,)]


def test_more_slots_are_given_at_once_where_there_is_an_app(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=0)
    first, second, third = lane_jobs.add(3)
    result = run_with(lane_jobs.app, "lanes", "set", "l", "--limit", "1", "--dry-run")
    assert result.exit_code == 0
    assert lane_jobs.messages() == []
    run_with(lane_jobs.app, "lanes", "set", "l", "--limit", "2")
    assert lane_jobs.messages() == [first, second]
    run_with(lane_jobs.app, "lanes", "set", "l", "--no-limit")
    assert lane_jobs.messages() == [first, second, third]


def test_without_an_app_beat_is_told(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=0)
    with psycopg.connect(lane_jobs.database, autocommit=True) as listener:
        listener.execute(f"LISTEN {channels.LANES}")
        run(lane_jobs.database, "lanes", "set", "l", "--limit", "1")
        [told] = listener.notifies(timeout=20, stop_after=1)
    assert told.payload == "default/l"


# -- pause, resume


def test_pause_and_resume(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1)
    waiting = lane_jobs.add()
    assert run(lane_jobs.database, "lanes", "pause", "l").stdout == "Paused lane 'l'.\n"
    assert "is paused already, since " in run(lane_jobs.database, "lanes", "pause", "l").stdout
    assert lane_jobs.dispatch() == []
    assert read(lane_jobs.database, "lanes", "pause", "l")["paused_at"].endswith("Z")
    assert run_with(lane_jobs.app, "lanes", "resume", "l").stdout == "Resumed lane 'l'.\n"
    assert lane_jobs.messages() == waiting
    assert run(lane_jobs.database, "lanes", "resume", "l").stdout == "Lane 'l' is not paused.\n"
    assert read(lane_jobs.database, "lanes", "resume", "l")["paused_at"] is None


@pytest.mark.parametrize("command", ["pause", "resume", "show", "remove"])
def test_a_lane_that_is_not_there_is_an_error(lane_jobs: Lanes, command: str) -> None:
    lane_jobs.lane("crawl")
    assert "'crawl'" in refused(run(lane_jobs.database, "lanes", command, "crawls"), 1)


# -- remove


def test_remove_asks(lane_jobs: Lanes) -> None:
    lane_jobs.lane()
    result = run(lane_jobs.database, "lanes", "remove", "l", input="n\n")
    assert result.stdout.endswith("Nothing is removed.\n")
    assert run(lane_jobs.database, "lanes", "remove", "l", "--dry-run").stdout == (
        "Would remove lane 'l'.\n"
    )
    assert run(lane_jobs.database, "lanes", "remove", "l", input="y\n").stdout.endswith(
        "Removed lane 'l'.\n"
    )
    assert lane_jobs.sql("SELECT count(*) FROM pgbeat.lanes") == [(0,)]


def test_remove_is_refused_while_something_waits(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1)
    waiting = lane_jobs.add(2)
    error = refused(run(lane_jobs.database, "lanes", "remove", "l", "--yes"))
    assert error == (
        "lane 'l' is in use: 2 jobs to come; --force removes it, and dispatches what waits without "
        "a limit"
    )
    result = run_with(lane_jobs.app, "lanes", "remove", "l", "--yes", "--force", "--json")
    assert json.loads(result.stdout) == {"name": "l", "removed": True}
    assert lane_jobs.messages() == waiting


# -- list, show


def test_list(lane_jobs: Lanes) -> None:
    assert "There are no lanes" in run(lane_jobs.database, "lanes", "list").stdout
    lane_jobs.lane(max_running=2)
    lane_jobs.lane("gpu", policy="resources", options='{"gpu": 2}')
    lane_jobs.add(5)
    lane_jobs.dispatch()
    run(lane_jobs.database, "lanes", "pause", "gpu")
    run(lane_jobs.database, "lanes", "set", "l", "--rate", "100/hour")
    head, gpu, full = run(lane_jobs.database, "lanes", "list").stdout.splitlines()
    assert head.split() == [
        "lane",
        "running",
        "limit",
        "waiting",
        "rate",
        "fair",
        "policy",
        "waits",
        "paused",
    ]
    assert gpu.split()[:5] == ["gpu", "0", "0", "resources", '{"gpu":']
    assert "for" in gpu
    assert full.split()[:6] == ["l", "2", "2", "3", "100/hour", "for"]
    rows = read(lane_jobs.database, "lanes", "list")
    assert [(r["name"], r["running"], r["waiting"], r["rate"]) for r in rows] == [
        ("gpu", 0, 0, None),
        ("l", 2, 3, "100/hour"),
    ]
    assert rows[0]["paused_at"] is not None and rows[1]["waiting_since"] is not None


def test_show(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1)
    first, second = lane_jobs.add(2, priority=3)
    lane_jobs.dispatch()
    with connected(lane_jobs.database) as caller:
        reservation = reserve(caller)
        result = run(lane_jobs.database, "lanes", "show", "l")
        found = read(lane_jobs.database, "lanes", "show", "l")
    assert result.stderr == ""
    text = result.stdout
    assert "the limit of 1 is reached" in text
    for each in (first, second, f"direct/{reservation}", "user:me"):
        assert each in text
    assert [each["id"] for each in found["slots"]] == [first]
    assert [(each["id"], each["is_direct"], each["reason"]) for each in found["line"]] == [
        (f"direct/{reservation}", True, "the limit of 1 is reached"),
        (second, False, "the limit of 1 is reached"),
    ]
    assert found["line"][1]["priority"] == 3
    assert (found["running"], found["waiting"], found["max_running"]) == (1, 2, 1)


def test_show_asks_a_policy_of_the_app(lane_jobs: Lanes) -> None:
    lane_jobs.lane(policy="tests.evenings", options='{"hour": 22}')
    lane_jobs.add()
    result = run_with(lane_jobs.app, "lanes", "show", "l")
    assert "not before 22" in result.stdout
    lane_jobs.sql("UPDATE pgbeat.lanes SET policy = 'tests.elsewhere'")
    result = run(lane_jobs.database, "lanes", "show", "l")
    assert "'tests.elsewhere' is not registered" in result.stdout
    assert "give the app with -A" in result.stderr


def test_show_changes_nothing(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1)
    lane_jobs.add()
    assert read(lane_jobs.database, "lanes", "show", "l")["line"][0]["reason"] is None
    assert "gets the next slot" in run(lane_jobs.database, "lanes", "show", "l").stdout
    assert lane_jobs.seated() == set()


# -- direct


def test_direct_prints_the_result(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1)
    result = run_with(
        lane_jobs.app, "direct", "tests.add", "--lane", "l", "--args", "[4]", "--kwargs", '{"y": 1}'
    )
    assert (result.exit_code, result.stdout) == (0, "5\n")
    result = run_with(
        lane_jobs.app, "direct", "tests.note", "--lane", "l", "--args", '["x"]', "--json"
    )
    assert json.loads(result.stdout) == "x"


def test_direct_says_why_there_is_no_slot(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=0)
    result = run_with(lane_jobs.app, "direct", "tests.add", "--lane", "l", "--timeout", "0.1")
    assert "0.1 s" in refused(result, 1)


def test_direct_says_what_the_task_raised(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1)
    result = run_with(lane_jobs.app, "direct", "tests.add", "--lane", "l", "--args", '["x"]')
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: tests.add raised TypeError: ")
    assert lane_jobs.sql("SELECT count(*) FROM pgbeat.reservations") == [(0,)]


def test_what_the_task_prints_comes_before_the_error_in_a_pipe(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1)

    @lane_jobs.app.task(name="tests.speak")
    def speak() -> None:
        print("first")
        raise ValueError("second")

    result = run_with(lane_jobs.app, "direct", "tests.speak", "--lane", "l")
    assert result.output == "first\nError: tests.speak raised ValueError: second\n"


def test_direct_takes_its_resources(lane_jobs: Lanes) -> None:
    lane_jobs.lane(policy="resources", options='{"gpu": 1}')
    result = run_with(
        lane_jobs.app, "direct", "tests.add", "--lane", "l", "--resource", "gpu=2", "--timeout", "0"
    )
    assert "'gpu'" in refused(result, 1)


def test_direct_needs_the_app_and_the_task(lane_jobs: Lanes) -> None:
    lane_jobs.lane()
    assert "-A APP" in refused(run(lane_jobs.database, "direct", "tests.add", "--lane", "l"))
    result = run_with(lane_jobs.app, "direct", "tests.ad", "--lane", "l")
    assert "'tests.add'" in refused(result)
