"""Lanes: their rows, and who gets their slots."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection

from pgbeat.beat.maintenance.leader_maintenance import LeaderMaintenance
from pgbeat.broker.publishing.publisher import TransactionPublisher
from pgbeat.config import Settings
from pgbeat.database import channels, connections
from pgbeat.errors import InvalidJob, NotFound
from pgbeat.jobs.flow import lifecycle
from pgbeat.jobs.flow.dispatch import dispatch_in_transaction, dispatch_lane
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes import occupancy, reservations
from pgbeat.jobs.lanes.concurrency import ConcurrencyPolicy, Work, concurrency_policy
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.states import endings
from pgbeat.jobs.verbs import lane_control
from pgbeat.worker.recording.recorder_session import PLANS
from tests.support.databases import connected
from tests.support.lanes import Lanes
from tests.support.problems import raises
from tests.support.processes import until
from tests.support.rows import make_schedule

Ends = Callable[..., set[lanes.Room]]

# -- the limit


def test_a_lane_hands_out_as_many_jobs_as_it_has_slots(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=2)
    first, second, third = lane_jobs.add(3)

    assert lane_jobs.dispatch() == [first, second]
    assert lane_jobs.dispatch() == []
    lane_jobs.end(first)
    assert lane_jobs.dispatch() == [third]
    assert lane_jobs.seated() == {second, third}


def test_a_lane_without_a_limit_hands_out_all(lane_jobs: Lanes) -> None:
    lane_jobs.lane()
    assert set(lane_jobs.add(450)) == set(lane_jobs.dispatch())


def test_a_job_has_its_slot_until_it_ends(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1)
    first, second = lane_jobs.add(2)
    lane_jobs.dispatch()
    for change in ("state = 'running', started_at = now()", "state = 'scheduled', run_at = now()"):
        lane_jobs.sql(f"UPDATE pgbeat.jobs SET {change} WHERE id = %s", first)
        assert lane_jobs.dispatch() == []
    lane_jobs.end(first, state="failed")
    assert lane_jobs.dispatch() == [second]


def test_the_line_is_ordered_by_priority_position_and_age(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=10)
    usual = lane_jobs.add(2)
    urgent = lane_jobs.add(2, priority=9)
    first, moved = lane_jobs.add(2)
    lane_jobs.sql("UPDATE pgbeat.jobs SET position = 0 WHERE id = %s", moved)
    assert lane_jobs.dispatch() == [*urgent, moved, *usual, first]


def test_who_waits_for_its_turn_or_its_time_is_not_in_the_line(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=10)
    lane_jobs.add(is_blocked=True)
    lane_jobs.add(state="scheduled", run_at="2100-01-01T00:00:00Z")
    lane_jobs.add(state="paused")
    ready = lane_jobs.add()
    assert lane_jobs.dispatch() == ready


def test_a_paused_lane_hands_out_nothing_until_it_is_resumed(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1)
    waiting = lane_jobs.add()
    assert lane_jobs.do(lane_control.pause, "l")[1]
    assert not lane_jobs.do(lane_control.pause, "l")[1]
    assert lane_jobs.dispatch() == []
    assert lane_jobs.do(lane_control.resume, "l")[1]
    assert not lane_jobs.do(lane_control.resume, "l")[1]
    assert lane_jobs.dispatch() == waiting


def test_lanes_of_the_same_name_in_other_namespaces_have_slots_of_their_own(
    lane_jobs: Lanes,
) -> None:
    lane_jobs.lane(max_running=1)
    lane_jobs.lane(max_running=1, namespace="other")
    [own] = lane_jobs.add()
    lane_jobs.add(2, namespace="other")
    assert lane_jobs.dispatch() == [own]


def test_what_is_left_in_a_lane_that_was_removed_is_handed_out(lane_jobs: Lanes) -> None:
    waiting = lane_jobs.add(3, lane="gone")
    assert lane_jobs.dispatch("gone") == waiting


def test_what_is_left_in_a_lane_that_was_removed_is_found(lane_jobs: Lanes) -> None:
    """Whoever should have dispatched it died; so did a direct execution that waited there."""
    lane_jobs.lane("m", max_running=1)
    lane_jobs.lane("paused", max_running=1, paused_at="2026-01-01T00:00:00Z")
    for lane in ("n", "m", "paused"):
        lane_jobs.add(1, lane=lane)
    first, second = lane_jobs.add(2, lane="gone")
    with connected(lane_jobs.database) as caller:
        reserve(caller, "gone")
    until(lambda: not reservations.live(lane_jobs.connection, "default", "gone"))
    settings = Settings.load(lane_jobs.app.conf)
    maintenance = LeaderMaintenance(lane_jobs.app, settings, lane_jobs.publisher)
    maintenance.step(lane_jobs.connection, is_due=False, is_idle=False)
    assert set(lane_jobs.messages()) > {first, second}
    assert lanes.to_dispatch(lane_jobs.connection, "default") == []


@pytest.mark.parametrize("more", [{}, {"policy": "tasks", "options": '{"tests.add": 1}'}])
def test_a_job_that_somebody_holds_locked_is_passed_over(
    lane_jobs: Lanes, more: dict[str, str]
) -> None:
    lane_jobs.lane(max_running=1, **more)
    first, second = lane_jobs.add(2)
    with connected(lane_jobs.database) as other, connections.transaction(other):
        jobs.get(other, first, for_update=True)
        assert lane_jobs.dispatch() == [second]
    lane_jobs.end(second)
    assert lane_jobs.dispatch() == [first]


def test_a_job_that_cant_be_published_fails_and_the_next_has_its_slot(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1)
    [bad] = lane_jobs.add(options={"serializer": "nothing"})
    [good] = lane_jobs.add()
    assert lane_jobs.dispatch() == [good]
    [(state, error)] = lane_jobs.sql("SELECT state, error FROM pgbeat.jobs WHERE id = %s", bad)
    assert state == "failed" and "can't be published" in error


def test_eight_who_allot_at_once_never_exceed_the_limit(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=3)
    everything = lane_jobs.add(120)
    ended: list[str] = []
    most = 0

    def work(number: int) -> None:
        """Allots, and ends what has a slot."""
        nonlocal most
        with connected(lane_jobs.database) as own:
            publisher = TransactionPublisher(lane_jobs.app)
            while len(ended) < len(everything):
                dispatch_lane(own, publisher, "default", "l")
                with connections.transaction(own):
                    rows = own.exec_driver_sql(
                        "SELECT id FROM pgbeat.jobs WHERE dispatched_at IS NOT NULL "
                        "AND state = 'pending'"
                    ).all()
                    most = max(most, len(rows))
                if rows:
                    mine = endings.end(own, [rows[number % len(rows)][0]], "skipped", None)
                    ended.extend(str(job.id) for job in mine)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert sorted(ended) == sorted(everything)
    assert most == 3
    assert sorted(lane_jobs.messages()) == sorted(everything)


# -- in the transaction that ends a job


@pytest.fixture
def recording(lane_jobs: Lanes) -> Iterator[Connection]:
    """A session such as a worker's recorder has."""
    with connected(lane_jobs.database) as connection:
        connections.configure(connection, PLANS)
        yield connection


def room(job_id: str) -> lanes.Room:
    """Returns what a job that ends leaves in the lane."""
    return lanes.Room("default", "l", UUID(job_id))


def end_and_dispatch(lane_jobs: Lanes, connection: Connection, *ids: str) -> set[lanes.Room]:
    """Ends jobs and dispatches their lane, in the open transaction."""
    ended = endings.end(connection, ids, "skipped", None)
    freed = lifecycle.follow(connection, lane_jobs.publisher, ended)
    return dispatch_in_transaction(connection, lane_jobs.publisher, freed)


@pytest.fixture
def ends(lane_jobs: Lanes, recording: Connection) -> Ends:
    """Does the same in a transaction of its own."""

    def commit(*ids: str) -> set[lanes.Room]:
        with connections.transaction(recording):
            return end_and_dispatch(lane_jobs, recording, *ids)

    return commit


def test_the_next_job_has_the_slot_if_and_only_if_the_end_is_recorded(
    lane_jobs: Lanes, recording: Connection, ends: Ends
) -> None:
    lane_jobs.lane(max_running=1)
    first, second, third = lane_jobs.add(3)
    lane_jobs.dispatch()
    with connections.transaction(recording):
        assert end_and_dispatch(lane_jobs, recording, first) == set()
        assert lane_jobs.seated() == {first}
        recording.exec_driver_sql("ROLLBACK")
        recording.exec_driver_sql("BEGIN")
    assert (lane_jobs.seated(), lane_jobs.messages()) == ({first}, [first])
    ends(first)
    assert (lane_jobs.seated(), lane_jobs.messages()) == ({second}, [first, second])
    assert third not in lane_jobs.messages()


def test_the_jobs_of_several_ends_keep_their_order(lane_jobs: Lanes, ends: Ends) -> None:
    lane_jobs.lane(max_running=3)
    ids = lane_jobs.add(3)
    usual, urgent = lane_jobs.add(2), lane_jobs.add(2, priority=9)
    assert lane_jobs.dispatch() == [*urgent, ids[0]]
    ends(*urgent)
    assert lane_jobs.messages()[-2:] == ids[1:]
    ends(*ids)
    assert lane_jobs.messages()[-2:] == usual


@pytest.mark.parametrize(
    "limits",
    [
        {"policy": "tasks", "options": '{"tests.add": 1}'},
        {"rate_limit": 1, "rate_period": timedelta(hours=1)},
    ],
)
def test_a_lane_with_more_than_a_limit_is_left(
    lane_jobs: Lanes, ends: Ends, limits: dict[str, Any]
) -> None:
    """The app's own code must not run in the transaction that records an end."""
    lane_jobs.lane(max_running=1, **limits)
    first, _ = lane_jobs.add(2)
    lane_jobs.dispatch()
    assert ends(first) == {room(first)}
    assert lane_jobs.seated() == set()


def test_a_slot_that_a_direct_execution_waits_for_is_left(lane_jobs: Lanes, ends: Ends) -> None:
    lane_jobs.lane(max_running=1)
    first, _ = lane_jobs.add(2)
    lane_jobs.dispatch()
    reserve(lane_jobs.connection)
    assert ends(first) == {room(first)}
    assert lane_jobs.dispatch() == []
    assert lane_jobs.seated() == set()


def test_a_paused_lane_gives_no_slot_to_the_next(lane_jobs: Lanes, ends: Ends) -> None:
    lane_jobs.lane(max_running=1)
    first, _ = lane_jobs.add(2)
    lane_jobs.dispatch()
    lane_jobs.do(lane_control.pause, "l")
    assert ends(first) == set()
    assert lane_jobs.seated() == set()


def test_a_lane_that_stays_locked_delays_no_end(lane_jobs: Lanes, ends: Ends) -> None:
    lane_jobs.lane(max_running=1)
    first, second = lane_jobs.add(2)
    lane_jobs.dispatch()
    with connected(lane_jobs.database) as other, connections.transaction(other):
        lanes.lock(other, "default", "l")
        assert ends(first) == {room(first)}
        assert lane_jobs.sql("SELECT state FROM pgbeat.jobs WHERE id = %s", first) == [("skipped",)]
    assert lane_jobs.dispatch() == [second]


def test_who_waits_for_a_lane_sees_what_was_dispatched_meanwhile(
    lane_jobs: Lanes, recording: Connection
) -> None:
    """Two end jobs at the same moment: the second counts what the first has dispatched."""
    lane_jobs.lane(max_running=2)
    first, second, *waiting = lane_jobs.add(4)
    lane_jobs.dispatch()
    begun, commits = threading.Event(), threading.Event()

    def end_the_second() -> None:
        with connected(lane_jobs.database) as other:
            publisher = TransactionPublisher(lane_jobs.app)
            with connections.transaction(other):
                ended = endings.end(other, [second], "skipped", None)
                begun.set()
                lifecycle.follow(other, publisher, ended)
                commits.wait(10)
                # The other one's commit is under way: its lock of the lane is waited for.
                dispatch_in_transaction(other, publisher, {lanes.Room("default", "l")})

    with ThreadPoolExecutor(1) as pool:
        with connections.transaction(recording):
            other = pool.submit(end_the_second)
            assert begun.wait(10)
            end_and_dispatch(lane_jobs, recording, first)
            commits.set()
        other.result(30)
    lane_jobs.dispatch()
    assert lane_jobs.seated() == set(waiting)
    assert len(lane_jobs.messages()) == 4


def test_eight_who_end_jobs_at_once_never_exceed_the_limit(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=3)
    everything = lane_jobs.add(120)
    lane_jobs.dispatch()
    most = 0

    def work(number: int) -> None:
        """Ends what has a slot."""
        nonlocal most
        room = lanes.Room("default", "l")
        with connected(lane_jobs.database) as own:
            publisher = TransactionPublisher(lane_jobs.app)
            while rows := own.exec_driver_sql(
                "SELECT id FROM pgbeat.jobs WHERE dispatched_at IS NOT NULL AND state = 'pending'"
            ).all():
                most = max(most, len(rows))
                with connections.transaction(own):
                    ended = endings.end(own, [rows[number % len(rows)][0]], "skipped", None)
                    left = dispatch_in_transaction(own, publisher, {room}) if ended else {room}
                if left:
                    dispatch_lane(own, publisher, *room[:2])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert most == 3
    assert sorted(lane_jobs.messages()) == sorted(everything)


# -- rates


def moment(lane_jobs: Lanes, seconds: float, *ids: str) -> None:
    """Has jobs been handed out so long ago."""
    lane_jobs.sql(
        "UPDATE pgbeat.jobs SET dispatched_at = now() - %s * interval '1 second' "
        "WHERE id = ANY (%s::uuid[])",
        seconds,
        list(ids),
    )


def test_a_rate_limits_what_is_handed_out_in_a_period(lane_jobs: Lanes) -> None:
    lane_jobs.lane(rate_limit=2, rate_period=timedelta(minutes=1))
    first, second, third, fourth = lane_jobs.add(4)
    assert lane_jobs.dispatch() == [first, second]
    lane_jobs.end(first, second)
    assert lane_jobs.dispatch() == []

    moment(lane_jobs, 45, first)
    again = lane_jobs.retry_in()
    assert again is not None and 10 < again <= 15
    moment(lane_jobs, 61, first)
    assert lane_jobs.dispatch() == [third]
    again = lane_jobs.retry_in()
    assert again is not None and 50 < again <= 60
    assert fourth not in lane_jobs.messages()


def test_a_rate_asks_for_no_other_look_while_nobody_waits(lane_jobs: Lanes) -> None:
    lane_jobs.lane(rate_limit=2, rate_period=timedelta(minutes=1))
    lane_jobs.add(2)
    assert lane_jobs.retry_in() is None


def test_the_limit_counts_beside_the_rate(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1, rate_limit=2, rate_period=timedelta(minutes=1))
    first, second, third = lane_jobs.add(3)
    assert lane_jobs.dispatch() == [first]
    lane_jobs.end(first)
    assert lane_jobs.dispatch() == [second]
    lane_jobs.end(second)
    assert lane_jobs.dispatch() == []
    assert third in {str(row[0]) for row in lane_jobs.sql("SELECT id FROM pgbeat.jobs")}


def test_a_rate_is_counted_by_the_values_of_its_key(lane_jobs: Lanes) -> None:
    lane_jobs.lane(rate_limit=1, rate_period=timedelta(minutes=1), rate_key="kwargs.text")
    a, a2 = lane_jobs.add(2, task="tests.note", kwargs={"text": "a"})
    b = lane_jobs.add(task="tests.note", kwargs={"text": "b"})
    none, none2 = lane_jobs.add(2)
    number, number2 = lane_jobs.add(2, task="tests.note", kwargs={"text": 1})
    assert lane_jobs.dispatch() == [a, *b, none, number]
    moment(lane_jobs, 40, a)
    moment(lane_jobs, 50, *b)  # for whom nobody waits
    again = lane_jobs.retry_in()
    assert again is not None and 15 < again <= 20
    moment(lane_jobs, 61, a, none)
    assert lane_jobs.dispatch() == [a2, none2]
    assert number2 not in lane_jobs.messages()


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        ("task", [{"task": "tests.add"}, {"task": "tests.note"}]),
        ("created_by", [{"created_by": "user:me"}, {"created_by": "user:you"}]),
        ("tag", [{"tags": ["x"]}, {"tags": ["y"]}]),
    ],
)
def test_rates_by_other_keys(lane_jobs: Lanes, key: str, fields: Sequence[dict[str, Any]]) -> None:
    lane_jobs.lane(rate_limit=1, rate_period=timedelta(minutes=1), rate_key=key)
    one, _ = lane_jobs.add(2, **fields[0])
    other, _ = lane_jobs.add(2, **fields[1])
    assert lane_jobs.dispatch() == [one, other]


def test_a_job_counts_for_each_of_its_tags(lane_jobs: Lanes) -> None:
    lane_jobs.lane(rate_limit=1, rate_period=timedelta(minutes=1), rate_key="tag")
    both = lane_jobs.add(tags=["x", "y"])
    lane_jobs.add(tags=["y"])
    other = lane_jobs.add(tags=["z"])
    assert lane_jobs.dispatch() == [*both, *other]


# -- policies


def test_a_policy_lets_others_pass_who_waits(lane_jobs: Lanes) -> None:
    lane_jobs.lane(policy="tasks", options='{"tests.add": 1}')
    first, second = lane_jobs.add(2)
    notes = lane_jobs.add(2, task="tests.note")
    assert lane_jobs.dispatch() == [first, *notes]
    lane_jobs.end(first)
    assert lane_jobs.dispatch() == [second]


def test_the_limit_counts_beside_the_policy(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=2, policy="tags", options='{"heavy": 1}')
    heavy, _ = lane_jobs.add(2, tags=["heavy"])
    light, _ = lane_jobs.add(2)
    assert lane_jobs.dispatch() == [heavy, light]


def test_a_job_far_down_the_line_is_found(lane_jobs: Lanes) -> None:
    lane_jobs.lane(policy="tags", options='{"heavy": 0}')
    lane_jobs.add(230, tags=["heavy"])
    light = lane_jobs.add()
    assert lane_jobs.dispatch() == light


class Told(ConcurrencyPolicy):
    """Writes down what it is told. `odd` is what it does with jobs of that tag."""

    log: list[tuple[str, str]]

    def __init__(self, odd: str = "") -> None:
        self._odd = odd

    def can_dispatch(self, job: Work) -> bool | str:
        self.log.append(("asked", job.id))
        if "odd" in job.tags and self._odd == "raise":
            raise LookupError("no such thing")
        return "not today" if "odd" in job.tags else True

    def on_job_started(self, job: Work) -> None:
        self.log.append(("started", job.id))
        if "odd" in job.tags and self._odd == "fail":
            raise LookupError("no such thing")

    def on_job_completed(self, job: Work) -> None:
        self.log.append(("completed", job.id))
        if self._odd == "raise":
            raise LookupError("no such thing")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    concurrency_policy("tests.told")(Told)
    monkeypatch.setattr(Told, "log", [], raising=False)
    return Told.log


def test_a_policy_is_told_of_what_has_a_slot_before_it_is_asked(
    lane_jobs: Lanes, told: list[tuple[str, str]]
) -> None:
    lane_jobs.lane(policy="tests.told")
    [first] = lane_jobs.add()
    lane_jobs.dispatch()
    [odd, second] = [*lane_jobs.add(tags=["odd"]), *lane_jobs.add()]
    told.clear()
    assert lane_jobs.dispatch() == [second]
    assert told == [("started", first), ("asked", odd), ("asked", second), ("started", second)]


def test_a_policy_that_raises_for_one_job_holds_that_one_back(
    lane_jobs: Lanes, told: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    lane_jobs.lane(policy="tests.told", options='{"odd": "raise"}')
    lane_jobs.add(tags=["odd"])
    good = lane_jobs.add()
    assert lane_jobs.dispatch() == good
    assert lane_jobs.dispatch() == []
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors == [
        "Jobs of lane 'l' wait: Told.can_dispatch raised LookupError: no such thing"
    ]  # once


@pytest.mark.parametrize(
    ("policy", "options", "said"),
    [
        ("tests.told", '{"odd": "fail"}', "on_job_started raised LookupError"),
        ("tests.told", '{"even": "fail"}', "has no option 'even'"),
        ("tests.nowhere", "{}", "is not registered"),
        ("tasks", '{"tests.add": "one"}', "limits are numbers"),
    ],
)
def test_with_a_policy_that_is_broken_all_wait_and_other_lanes_go_on(
    lane_jobs: Lanes,
    told: list[tuple[str, str]],
    policy: str,
    options: str,
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lane_jobs.lane(max_running=5)
    lane_jobs.lane("other", max_running=5)
    lane_jobs.add(tags=["odd"])
    lane_jobs.dispatch()
    lane_jobs.sql(
        "UPDATE pgbeat.lanes SET policy = %s, options = %s WHERE name = 'l'", policy, options
    )
    lane_jobs.add(2)
    assert lane_jobs.dispatch() == []
    assert said in caplog.text
    fine = lane_jobs.add(lane="other")
    assert lane_jobs.dispatch("other") == fine


def test_a_policy_is_told_of_ends(
    lane_jobs: Lanes, told: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    lane_jobs.lane(max_running=1, policy="tests.told", options='{"odd": "raise"}')
    first, second = lane_jobs.add(2)
    lane_jobs.dispatch()
    told.clear()
    with connections.transaction(lane_jobs.connection):
        ended = lifecycle.cancel(
            lane_jobs.connection, lane_jobs.publisher, [first, second], by="user:me", reason="no"
        )
        lifecycle.follow(lane_jobs.connection, lane_jobs.publisher, ended)
    assert told == [("completed", first)]  # the other had no slot
    assert "on_job_completed of policy" in caplog.text


# -- reservations


def reserve(connection: Connection, lane: str = "l", **what: Any) -> int:
    wanted = {"task": "tests.add", "tags": [], "resources": {}, "created_by": "user:me", **what}
    return reservations.reserve(connection, "default", lane, **wanted)


def test_a_reservation_gets_the_next_slot_before_jobs(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1)
    first, second = lane_jobs.add(2)
    lane_jobs.dispatch()
    with connected(lane_jobs.database) as caller:
        reservation = reserve(caller)
        assert lane_jobs.dispatch() == []
        assert not reservations.has_started(caller, reservation)
        lane_jobs.end(first)
        assert lane_jobs.dispatch() == []
        assert reservations.has_started(caller, reservation)
        reservations.drop(caller, reservation)
        assert lane_jobs.dispatch() == [second]


def test_a_reservation_whose_session_ended_holds_nobody_up(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=2)
    with connected(lane_jobs.database) as one, connected(lane_jobs.database) as two:
        reserve(one), reserve(two)
        lane_jobs.dispatch()
        waiting = lane_jobs.add(2)
        assert lane_jobs.dispatch() == []
        assert lanes.to_dispatch(lane_jobs.connection, "default") == ["l"]
    until(lambda: not reservations.live(lane_jobs.connection, "default", "l"))
    assert lane_jobs.dispatch() == waiting
    assert lane_jobs.sql("SELECT count(*) FROM pgbeat.reservations") == [(0,)]
    lane_jobs.end(*waiting)
    assert lanes.to_dispatch(lane_jobs.connection, "default") == []


def test_what_a_reservation_waits_for_no_job_takes(lane_jobs: Lanes) -> None:
    lane_jobs.lane(policy="resources", options='{"gpu": 2, "disk": 1}')
    half, other = lane_jobs.add(2, resources={"gpu": 1})
    lane_jobs.dispatch()
    lane_jobs.end(half)
    with connected(lane_jobs.database) as caller:
        reservation = reserve(caller, resources={"gpu": 2})
        lane_jobs.add(resources={"gpu": 1})
        disk = lane_jobs.add(resources={"disk": 1})
        assert lane_jobs.dispatch() == disk
        lane_jobs.end(other)
        assert lane_jobs.dispatch() == []
        assert reservations.has_started(caller, reservation)


def test_a_reservation_takes_a_slot_of_a_lane_without_a_limit_at_once(lane_jobs: Lanes) -> None:
    lane_jobs.lane()
    with connected(lane_jobs.database) as caller:
        reservation = reserve(caller)
        waiting = lane_jobs.add(2)
        assert lane_jobs.dispatch() == waiting
        assert reservations.has_started(caller, reservation)


# -- rows


def test_save_makes_a_lane_and_changes_what_is_given(lane_jobs: Lanes) -> None:
    lane, _, is_new = lane_jobs.do(lane_control.save, "gpu", {"max_running": 2})
    assert is_new and lane.max_running == 2 and lane.rate is None
    changes = {
        "rate_limit": 10,
        "rate_period": timedelta(minutes=1),
        "rate_key": "task",
        "policy": "resources",
        "options": {"gpu": 2},
    }
    lane, _, is_new = lane_jobs.do(lane_control.save, "gpu", changes)
    assert not is_new and lane.max_running == 2
    assert lane.rate == "10/minute of each task"
    assert lanes.get(lane_jobs.connection, "gpu", namespace="default") == lane


def test_save_refuses_what_is_wrong(lane_jobs: Lanes, told: object) -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"max_running": -1}, "max_running", "out_of_range"),
        ({"rate_key": "task"}, "rate_key", "conflict"),
        ({"rate_limit": 1, "rate_period": timedelta(1), "rate_key": "tags"}, "rate_key", "unknown"),
        ({"options": {"gpu": 1}}, "options", "conflict"),
        ({"policy": "task"}, "policy", "unknown"),
        ({"policy": "tags", "options": {"heavy": True}}, "options", "malformed"),
        ({"policy": "tags"}, "options", "malformed"),
        ({"policy": "tests.told", "options": {"od": ""}}, "options", "unknown_field"),
    ]
    for changes, field, code in cases:
        with raises(InvalidJob, (field, code)):
            lane_jobs.do(lane_control.save, "l", changes)
        assert lane_jobs.sql("SELECT count(*) FROM pgbeat.lanes") == [(0,)]


def test_save_refuses_names_that_are_none(lane_jobs: Lanes) -> None:
    cases: list[str] = ["", " x", "a/b", "x" * 201, "a\nb", "."]
    for name in cases:
        with raises(InvalidJob, ("name", "malformed")):
            lane_jobs.do(lane_control.save, name, {})


def test_get_names_the_nearest(lane_jobs: Lanes) -> None:
    lane_jobs.lane("crawler")
    with pytest.raises(NotFound, match="'crawler'"):
        lanes.get(lane_jobs.connection, "crawlers", namespace="default")
    with pytest.raises(NotFound, match="pgbeat lanes list"):
        lanes.get(lane_jobs.connection, "crawler", namespace="other")


def test_remove_is_refused_while_the_lane_is_in_use(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1)
    lane_jobs.add(2)
    lane_jobs.add(state="paused")
    make_schedule(lane_jobs.sql, job_policy={"lane": "l"})
    [first] = lane_jobs.dispatch()
    with raises(InvalidJob, ("", "in_use")):
        lane_jobs.do(lane_control.remove, "l")
    lane_jobs.do(lane_control.remove, "l", force=True)
    assert len(lane_jobs.dispatch()) == 1
    with pytest.raises(NotFound):
        lane_jobs.do(lane_control.remove, "l")
    assert first in lane_jobs.seated()


def test_a_lane_that_nobody_uses_can_be_removed(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1)
    lane_jobs.add()
    lane_jobs.dispatch()
    lane_jobs.do(lane_control.remove, "l")
    assert lane_jobs.sql("SELECT count(*) FROM pgbeat.lanes") == [(0,)]


def test_listing_counts_who_runs_and_who_waits(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=2)
    lane_jobs.lane("empty")
    lane_jobs.add(5)
    lane_jobs.dispatch()
    with connected(lane_jobs.database) as caller:
        reserve(caller)
        empty, full = lanes.listing(lane_jobs.connection, "default")
    assert (empty.running, empty.waiting, empty.waiting_since) == (0, 0, None)
    assert (full.lane.name, full.running, full.waiting) == ("l", 2, 4)
    assert full.waiting_since is not None


def test_changes_are_told_of(lane_jobs: Lanes) -> None:
    with psycopg.connect(lane_jobs.database, autocommit=True) as listener:
        listener.execute(f"LISTEN {channels.LANES}")
        lane_jobs.do(lane_control.save, "l", {"max_running": 1})
        lane_jobs.do(lane_control.pause, "l")
        lane_jobs.do(lane_control.resume, "l")
        lane_jobs.do(lane_control.remove, "l")
        found = [each.payload for each in listener.notifies(timeout=10, stop_after=3)]
    assert found == ["default/l"] * 3


# -- why


def test_occupancy_says_who_has_slots_and_why_the_others_wait(lane_jobs: Lanes) -> None:
    lane_jobs.lane(
        max_running=3,
        policy="tasks",
        options='{"tests.note": 1}',
        rate_limit=3,
        rate_period=timedelta(minutes=1),
        rate_key="task",
    )
    [note, note2] = lane_jobs.add(2, task="tests.note", priority=5)
    [add] = lane_jobs.add()
    lane_jobs.dispatch()
    [third] = lane_jobs.add()
    late = lane_jobs.add()
    lane = lanes.get(lane_jobs.connection, "l", namespace="default")
    held = occupancy.holders(lane_jobs.connection, lane)
    assert {(each.id, each.state) for each in held} == {(note, "pending"), (add, "pending")}
    assert [(each.id, each.reason) for each in occupancy.line(lane_jobs.connection, lane)] == [
        (note2, "task 'tests.note' has 1 of 1 in use"),
        (third, None),
        (late[0], "the limit of 3 is reached"),
    ]
    with connected(lane_jobs.database) as caller:
        reservation = reserve(caller, task="tests.note")
        first, *others = occupancy.line(lane_jobs.connection, lane)
        assert (first.id, first.is_direct) == (f"direct/{reservation}", True)
        assert first.reason == "task 'tests.note' has 1 of 1 in use"
        assert others[1].reason == "the limit of 3 is reached"  # what it waits for is not free
    lane_jobs.do(lane_control.pause, "l")
    lane = lanes.get(lane_jobs.connection, "l", namespace="default")
    reasons = {each.reason for each in occupancy.line(lane_jobs.connection, lane)}
    assert reasons == {"the lane is paused"}
