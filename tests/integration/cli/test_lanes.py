"""`pgbeat lanes` and `pgbeat direct`."""

import json
from typing import Any

from pgbeat.errors import InvalidJob
from pgbeat.jobs.lanes.concurrency import ConcurrencyPolicy, Work, concurrency_policy
from tests.integration.jobs.test_lanes import reserve
from tests.support.command_line import read, refused, run, run_with
from tests.support.databases import connected
from tests.support.lanes import Lanes
from tests.support.rows import Sql


@concurrency_policy("tests.evenings")
class Evenings(ConcurrencyPolicy):
    """Registers a policy of the app."""

    def __init__(self, hour: int = 20) -> None:
        self.hour = hour

    def can_dispatch(self, job: Work) -> bool | str:
        return f"not before {self.hour}"


def test_set_makes_a_lane_and_changes_what_is_given(database: str) -> None:
    result = run(database, "lanes", "set", "gpu", "--limit", "2")
    assert result.stdout == "Made lane 'gpu': 2 at once.\n"
    asked = ["--rate", "10/minute", "--rate-key", "task", "--policy", "resources", "--options"]
    result = run(database, "lanes", "set", "gpu", *asked, '{"gpu": 2}')
    assert result.stdout == (
        "Changed lane 'gpu': 2 at once, 10/minute of each task, policy resources {\"gpu\": 2}.\n"
    )
    assert run(database, "lanes", "set", "gpu", "--limit", "2").stdout.startswith(
        "Lane 'gpu' is like that already: 2 at once"
    )
    row = read(database, *["lanes", "set", "gpu", "--no-rate", "--no-policy", "--no-limit"])
    wanted: dict[str, Any] = {"max_running": None, "rate": None, "policy": None, "options": {}}
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


def test_set_refuses_what_is_wrong(database: str, sql: Sql) -> None:
    for arguments, named in (
        (["l", "--limit", "2", "--no-limit"], "--no-limit"),
        (["l", "--rate-key", "task", "--no-rate"], "--no-rate"),
        (["l", "--limit-per", "task", "2", "--no-fair"], "--no-fair"),
        (["l", "--limit-per", "task", "2", "--fair-by", "task"], "--fair-by"),
        (["l"], "--no-limit"),
        (["l", "--fair-by", "task"], "--no-limit"),
        (["l", "--policy", "tests.evenings", "--options", '{"our": 1}'], "'our'"),
    ):
        assert named in refused(run(database, "lanes", "set", *arguments))
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


def test_list(lane_jobs: Lanes) -> None:
    assert "There are no lanes" in run(lane_jobs.database, "lanes", "list").stdout
    lane_jobs.lane(max_running=2)
    lane_jobs.lane("gpu", policy="resources", options='{"gpu": 2}')
    lane_jobs.add(5)
    lane_jobs.dispatch()
    run(lane_jobs.database, "lanes", "pause", "gpu")
    run(lane_jobs.database, "lanes", "set", "l", "--rate", "100/hour")
    head, gpu, full = run(lane_jobs.database, "lanes", "list").stdout.splitlines()
    assert " ".join(head.split()) == "lane running limit waiting rate fair policy waits paused"
    assert gpu.split()[:5] == ["gpu", "0", "0", "resources", '{"gpu":']
    assert "for" in gpu
    assert full.split()[:6] == ["l", "2", "2", "3", "100/hour", "for"]


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


def test_direct_says_what_the_task_raised_after_what_it_printed(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1)

    @lane_jobs.app.task(name="tests.speak", shared=False)
    def speak() -> None:
        print("first")
        raise ValueError("second")

    result = run_with(lane_jobs.app, "direct", "tests.speak", "--lane", "l")
    assert result.output == "first\nError: tests.speak raised ValueError: second\n"
    assert (result.exit_code, result.stdout) == (1, "first\n")
    assert lane_jobs.sql("SELECT count(*) FROM pgbeat.reservations") == [(0,)]


def test_direct_prints_json_whatever_the_task_does(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1)

    @lane_jobs.app.task(name="tests.odd", shared=False)
    def odd(how: str) -> Any:
        if how == "refuse":
            raise InvalidJob("no")  # the task's mistake, not the command's
        if how == "exit":
            raise SystemExit(3)
        return {"nan": [float("nan")], "half": "\ud800"}[how]

    def run_odd(how: str, *more: str) -> Any:
        arguments = ("--lane", "l", "--args", json.dumps([how]), *more)
        return run_with(lane_jobs.app, "direct", "tests.odd", *arguments)

    for how, printed in {"nan": "[nan]", "half": "'\\ud800'"}.items():
        assert json.loads(run_odd(how, "--json").stdout) == printed
    assert run_odd("half").stdout == "\N{REPLACEMENT CHARACTER}\n"
    for how, message in {"refuse": "InvalidJob: no", "exit": "SystemExit: 3"}.items():
        said = refused(run_odd(how, "--json"), 1)
        assert said == f"tests.odd raised {message}"


def test_direct_needs_the_app_and_the_task(lane_jobs: Lanes) -> None:
    lane_jobs.lane()
    assert "-A APP" in refused(run(lane_jobs.database, "direct", "tests.add", "--lane", "l"))
    result = run_with(lane_jobs.app, "direct", "tests.ad", "--lane", "l")
    assert "'tests.add'" in refused(result)
