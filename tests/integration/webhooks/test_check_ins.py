"""Check-ins: requests that tell a monitor elsewhere of each run of a schedule."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Connection

from pgbeat.database import connections
from pgbeat.errors import InvalidSchedule
from pgbeat.schedules import control
from pgbeat.webhooks import check_ins
from pgbeat.webhooks.http import post
from pgbeat.webhooks.outbox import Outcome
from tests.integration.webhooks.test_webhooks import claim, finish
from tests.support.command_line import read, run
from tests.support.problems import raises
from tests.support.processes import Processes, until
from tests.support.rows import Sql, make_job, make_schedule, make_tick, unit_on
from tests.support.schedulers import Beat
from tests.support.webhook_receiver import Receiver

Deliver = Callable[[], list[str]]
STATES = "{/start,,/fail}"
APP = "tests.support.apps.webhooks"


@pytest.fixture
def deliver(connection: Connection, receiver: Receiver) -> Deliver:
    """Delivers until nothing is due; returns the paths that were requested, in their order."""

    def call() -> list[str]:
        before = len(receiver.received)
        while found := claim(connection):
            replies = [post(*each.request(), private=True) for each in found]
            assert finish(connection, *map(Outcome, found, replies)) == []
        return [each.path for each in receiver.received[before:]]

    return call


def tick(sql: Sql, schedule: int, outcome: str = "launched", **values: Any) -> Any:
    """Writes a decision; returns its due time."""
    given = {"job_id": uuid4()} if outcome == "launched" else {}
    made = make_tick(sql, schedule, outcome, **{"trigger": "timetable", **given, **values})
    return sql("SELECT due_at FROM pgbeat.ticks WHERE id = %s", made)[0][0]


def ended(sql: Sql, schedule: int, state: str, due_at: Any, **values: Any) -> None:
    given = {"trigger": "timetable", "due_at": due_at, "schedule": "s", "schedule_id": schedule}
    make_job(sql, state, **given | values)


def edit(connection: Connection, values: dict[str, Any]) -> None:
    with connections.transaction(connection):
        control.edit(unit_on(connection), "s", values)


def test_urls_that_are_refused(connection: Connection, sql: Sql) -> None:
    for url in (
        "ftp://example.org/x",
        "https://",
        "https://user:secret@example.org/",
        "https://example.org/ x",
        "https://example.org/{status}",
        "https://example.org/{a,b}",
        "https://example.org/{a,b,c,d}",
        "https://example.org/{a,{b},c}",
        "https://{a,b,c}/",
        "https://example.org/" + "x" * 2000,
    ):
        malformed = raises(InvalidSchedule, ("check_in_url", "malformed"))
        with malformed, connections.transaction(connection):
            control.add(unit_on(connection), "s", task="t", every="1 hour", check_in_url=url)
        with pytest.raises(psycopg.errors.CheckViolation, match="check_in_url"):
            make_schedule(sql, check_in_url=url)


def test_each_end_of_a_run(sql: Sql, deliver: Deliver, receiver: Receiver) -> None:
    url = receiver.url("/x") + STATES + "?run={id}&state={in,ok,error}"
    schedule = make_schedule(sql, check_in_url=url)
    ids = set()
    for state, path in (
        ("completed", "/x"),
        ("failed", "/x/fail"),
        ("cancelled", "/x/fail"),
        ("skipped", "/x"),
    ):
        due_at = tick(sql, schedule)
        ended(sql, schedule, state, due_at)
        first, second = deliver()
        run_id = first.removeprefix("/x/start?run=").removesuffix("&state=in")
        shown = "error" if path == "/x/fail" else "ok"
        assert second == f"{path}?run={run_id}&state={shown}"
        ids.add(run_id)
    assert len(ids) == 4
    tick(sql, schedule, "skipped")
    tick(sql, schedule, "failed")
    assert [path.split("?")[0] for path in deliver()] == ["/x", "/x/fail"]
    assert {each.headers.get("content-length") for each in receiver.received} == {None}


def test_only_what_the_url_asks_for(sql: Sql, deliver: Deliver, receiver: Receiver) -> None:
    plain = make_schedule(sql, "plain", check_in_url=receiver.url("/plain"))
    some = make_schedule(sql, "some", check_in_url=receiver.url("/some{-,,/fail}"))
    silent = make_schedule(sql, "silent")
    for schedule in (plain, some, silent):
        tick(sql, schedule)
        tick(sql, schedule, "failed")
        tick(sql, schedule, "skipped")
    assert sorted(deliver()) == ["/plain", "/some", "/some/fail"]


def test_runs_that_people_start_and_attempts_that_are_retried_say_nothing(
    sql: Sql, deliver: Deliver, receiver: Receiver
) -> None:
    schedule = make_schedule(sql, check_in_url=receiver.url("/x") + STATES)
    for trigger in ("manual", "backfill"):
        due_at = tick(sql, schedule, trigger=trigger)
        ended(sql, schedule, "completed", due_at, trigger=trigger)
    due_at = tick(sql, schedule)
    retry = "00000000-0000-0000-0000-000000000002"
    ended(sql, schedule, "failed", due_at, retried_by=retry)
    assert deliver() == ["/x/start"]
    ended(sql, schedule, "completed", due_at)
    assert deliver() == ["/x"]


def test_a_decision_made_again_is_a_run_of_its_own(
    beat: Beat, sql: Sql, receiver: Receiver
) -> None:
    """Its start and its end have the same id, though the job has the due time that failed."""
    url = receiver.url("/x") + STATES + "?run={id}"
    key = make_schedule(sql, due="-1 s", in_turn=True, condition_sql="SELECT 1/0", check_in_url=url)
    scheduler = beat()
    scheduler.run_due()
    sql("UPDATE pgbeat.schedules SET condition_sql = NULL, next_run = now()")
    scheduler.run_due()
    [(job, trigger, due_at)] = sql("SELECT id, trigger, due_at FROM pgbeat.jobs")
    again = make_job(sql, "running", retry_of=job, schedule_id=key, trigger=trigger, due_at=due_at)
    sql("UPDATE pgbeat.jobs SET retried_by = %s WHERE id = %s", again, job)
    for state, ended_job in (("failed", job), ("completed", again)):
        end = "UPDATE pgbeat.jobs SET state = %s, finished_at = now() WHERE id = %s"
        sql(end, state, ended_job)
    ids: dict[str, str] = dict(sql("SELECT event, payload ->> 'id' FROM pgbeat.deliveries"))
    assert ids.keys() == {"check-in.fail", "check-in.start", "check-in.ok"}
    assert ids["check-in.start"] == ids["check-in.ok"] != ids["check-in.fail"]


def test_several_jobs_of_a_tick_are_one_run(sql: Sql, deliver: Deliver, receiver: Receiver) -> None:
    schedule = make_schedule(sql, check_in_url=receiver.url("/x") + STATES)
    due_at = tick(sql, schedule)
    given = {"trigger": "timetable", "due_at": due_at, "schedule_id": schedule, "schedule": "s"}
    going = make_job(sql, "running", run_key="b", **given)
    ended(sql, schedule, "failed", due_at, run_key="a")
    assert deliver() == ["/x/start"]
    sql("UPDATE pgbeat.jobs SET state = 'completed', finished_at = now() WHERE id = %s", going)
    assert deliver() == ["/x/fail"]


def test_they_arrive_in_order_even_if_some_fail(
    sql: Sql, deliver: Deliver, receiver: Receiver, connection: Connection
) -> None:
    schedule = make_schedule(sql, check_in_url=receiver.url("/x") + STATES)
    receiver.answers.append(500)
    due_at = tick(sql, schedule)
    ended(sql, schedule, "completed", due_at)
    assert deliver() == ["/x/start"]
    found = check_ins.last(connection, schedule)
    assert found is not None and (found.status, found.state) == ("ok", "pending")
    ((wait,),) = sql("SELECT extract(epoch FROM pgbeat.next_delivery('default') - now())")
    assert 3 < wait < 6  # beat doesn't go round until the first is tried again
    sql("UPDATE pgbeat.deliveries SET next_at = now() WHERE attempts > 0")
    assert deliver() == ["/x/start", "/x"]


def test_a_url_can_be_changed_and_removed(
    sql: Sql, deliver: Deliver, receiver: Receiver, connection: Connection
) -> None:
    schedule = make_schedule(sql, check_in_url=receiver.url("/x"))
    receiver.answers.append(410)
    tick(sql, schedule, "skipped")
    assert deliver() == ["/x"]
    found = check_ins.last(connection, schedule)
    assert found is not None and found.error == "its receiver answered 410 Gone"
    assert check_ins.check(connection, "default") is not None
    tick(sql, schedule, "skipped")
    assert deliver() == []
    edit(connection, {"check_in_url": receiver.url("/y")})
    tick(sql, schedule, "skipped")
    assert deliver() == ["/y"]
    assert check_ins.check(connection, "default") is None
    edit(connection, {"check_in_url": None})
    tick(sql, schedule, "skipped")
    assert deliver() == [] and sql("SELECT count(*) FROM pgbeat.webhooks") == [(0,)]


def test_those_of_a_deleted_schedule_are_forgotten(sql: Sql, receiver: Receiver) -> None:
    schedule = make_schedule(sql, check_in_url=receiver.url("/x"))
    tick(sql, schedule, "skipped")
    sql("DELETE FROM pgbeat.schedules")
    assert sql("SELECT count(*) FROM pgbeat.webhooks") == [(0,)]
    assert sql("SELECT count(*) FROM pgbeat.deliveries") == [(0,)]


def test_other_webhooks_do_not_see_them(sql: Sql, database: str, receiver: Receiver) -> None:
    make_schedule(sql, check_in_url=receiver.url("/x"))
    assert read(database, "webhooks", "list") == []


def test_command_line(database: str, sql: Sql, deliver: Deliver, receiver: Receiver) -> None:
    url = receiver.url("/x")
    done = run(database, "add", "s", "--task", "t", "--every", "1h", "--check-in-url", url)
    assert done.exit_code == 0
    ((schedule,),) = sql("SELECT id FROM pgbeat.schedules")
    tick(sql, schedule, "skipped")
    receiver.answers.append(503)
    deliver()
    assert read(database, "status", "s")["last_check_in"]["error"].startswith("it answered 503")
    shown = run(database, "status", "s").output
    assert url in shown and "success not delivered yet" in shown
    assert run(database, "update", "s", "--no-check-in-url").exit_code == 0
    assert read(database, "status", "s")["check_in_url"] is None


@pytest.mark.slow
def test_a_killed_beat_is_noticed_and_the_next_one_reports_what_waited(
    processes: Processes, sql: Sql, receiver: Receiver
) -> None:
    beat = processes.beat(app=APP, PGBEAT_WEBHOOK_PRIVATE="1")
    worker = processes.worker(app=APP)
    make_schedule(sql, due="-1 second", in_turn=True, check_in_url=receiver.url("/x") + STATES)
    delivered = "SELECT payload ->> 'status' FROM pgbeat.deliveries WHERE state = 'delivered'"
    until(lambda: {state for (state,) in sql(delivered)} == {"start", "ok"})
    beat.kill()
    worker.kill()
    sql("UPDATE pgbeat.schedules SET next_run = now(), starts_at = now()")
    processes.beat(app=APP, PGBEAT_WEBHOOK_PRIVATE="1")
    until(lambda: len(receiver.received) == 3)
    processes.worker(app=APP)
    until(lambda: [each.path for each in receiver.received[2:]] == ["/x/start", "/x"])
