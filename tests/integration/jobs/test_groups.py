"""Groups: what a member's end means for the others, told as a worker tells it."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, chain

from pgbeat.access.actors import Actor
from pgbeat.access.redaction import Redactor
from pgbeat.database import connections
from pgbeat.errors import (
    Forbidden,
    InvalidJob,
    InvalidTransition,
    NotFound,
    NotUnique,
    PgbeatError,
    UnknownTask,
)
from pgbeat.jobs.explaining import tree as jobs_tree
from pgbeat.jobs.flow import lifecycle
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.groups import progress as turns
from pgbeat.jobs.running import executions
from pgbeat.jobs.states import due as due_jobs
from pgbeat.jobs.submitting.submit_group import SubmittedGroup, cancel
from pgbeat.jobs.verbs import control
from tests.support.jobs import JobControl, JobRunner
from tests.support.problems import raises
from tests.support.processes import until
from tests.support.rows import make_lane, make_template, make_webhook
from tests.support.schedulers import Beat
from tests.support.threads import WAITS

ADD = {"task": "tests.add", "max_attempts": 1}
AGAIN = {"task": "tests.add", "max_attempts": 2, "retry_base": 0}
IN_TURN, CONTINUE = {"mode": "sequential"}, {"on_failure": "continue"}


def ids(submitted: SubmittedGroup) -> list[str]:
    return [str(job.id) for job in submitted.jobs]


# -- one after the other


def test_each_of_a_sequence_goes_when_the_one_before_it_has_ended(runner: JobRunner) -> None:
    made = runner.group([ADD, ADD, ADD], mode="sequential", name="nightly")
    assert made.group.name == "nightly"
    assert [job.is_blocked for job in made.jobs] == [False, True, True]
    assert runner.messages() == ids(made)[:1]
    first = runner.take()
    assert runner.states() == ["running", "pending", "pending", "running"]
    assert runner.messages() == []
    runner.end(first)
    assert runner.messages() == ids(made)[1:2]
    assert [runner.run(), runner.run("skipped")] == ids(made)[1:]
    assert runner.states() == ["completed", "completed", "skipped", "completed"]
    assert runner.sql("SELECT finished_at IS NOT NULL FROM pgbeat.groups") == [(True,)]


def test_the_end_of_a_group_is_an_event(runner: JobRunner) -> None:
    """Of its last member, in the transaction that ends that; a retry is the same member."""
    make_webhook(runner.sql, events=["group.ended"])

    def told() -> list[tuple[Any, ...]]:
        return runner.sql(
            "SELECT payload -> 'data' ->> 'id', payload -> 'data' ->> 'state', "
            "payload -> 'data' -> 'jobs' FROM pgbeat.deliveries ORDER BY created_at"
        )

    made = runner.group([ADD, AGAIN, ADD], on_failure="continue", name="nightly")
    for state in ("completed", "failed", "skipped"):
        runner.run(state)
    assert told() == []
    runner.sql("UPDATE kombu_message SET visible = true, available_at = now()")
    runner.run("failed")
    one = (str(made.group.id), "failed", {"completed": 1, "failed": 1, "skipped": 1})
    assert told() == [one]
    other = runner.group([ADD, ADD])
    cancel(runner.unit(Actor("root", is_admin=True)), other.group.id)
    assert told() == [one, (str(other.group.id), "cancelled", {"cancelled": 2})]


@pytest.mark.parametrize(
    ("on_failure", "left"),
    [
        ("stop", ["failed", "cancelled", "cancelled", "failed"]),
        ("skip_remaining", ["failed", "skipped", "skipped", "failed"]),
    ],
)
def test_a_failure_ends_the_rest_of_a_sequence(
    runner: JobRunner, on_failure: str, left: list[str]
) -> None:
    made = runner.group([ADD] * 3, mode="sequential", on_failure=on_failure)
    runner.run("failed")
    assert runner.states() == left
    assert runner.messages() == []
    reasons = runner.sql("SELECT DISTINCT error FROM pgbeat.jobs WHERE group_position > 0")
    said = f"job {ids(made)[0]} of its group failed, and on_failure is {on_failure}"
    assert reasons == [(said,)]


@pytest.mark.parametrize(
    ("members", "options", "left"),
    [
        ([ADD] * 3, IN_TURN | CONTINUE, ["failed", "completed", "completed", "failed"]),
        ([ADD] * 3, CONTINUE, ["failed", "completed", "completed", "failed"]),
        ([AGAIN, ADD], IN_TURN, ["failed", "failed", "cancelled", "failed"]),
    ],
    ids=["a sequence continues", "parallel members continue", "a retry fails too"],
)
def test_the_rest_after_a_failure(
    runner: JobRunner, members: list[Any], options: dict[str, str], left: list[Any]
) -> None:
    runner.group(members, **options)
    for state in left[:-1]:
        if state != "cancelled":
            runner.run(state)
    assert runner.states() == left


def test_a_failure_that_is_tried_again_is_no_end(runner: JobRunner) -> None:
    made = runner.group([AGAIN, ADD], mode="sequential")
    runner.run("failed")
    assert runner.states() == ["failed", "scheduled", "pending", "running"]
    retry = until(lambda: runner.take() if runner.messages() else None)
    assert retry not in ids(made)
    assert runner.states() == ["failed", "running", "pending", "running"]
    runner.end(retry)
    assert runner.run() == ids(made)[1]
    assert runner.states() == ["failed", "completed", "completed", "completed"]
    progress = groups.progress(runner.connection, [made.group.id])[made.group.id]
    assert progress == (2, 2, {"completed": 2})


def test_what_comes_after_a_cancelled_one_of_a_sequence_is_ended_too(runner: JobRunner) -> None:
    made = runner.group([ADD] * 3, mode="sequential", on_failure="skip_remaining")
    withdraw(runner, ids(made)[0])
    assert runner.states() == ["cancelled", "skipped", "skipped", "cancelled"]


def withdraw(runner: JobRunner, *job_ids: str) -> None:
    """Cancels jobs by themselves."""
    with connections.transaction(runner.connection):
        ended = lifecycle.cancel(
            runner.connection, runner.publisher, job_ids, by="me", reason="no more"
        )
        lifecycle.follow(runner.connection, runner.publisher, ended)


def test_a_later_one_may_be_cancelled_before_its_turn(runner: JobRunner) -> None:
    made = runner.group([ADD] * 3, mode="sequential", on_failure="continue")
    withdraw(runner, ids(made)[1])
    runner.run()
    assert runner.run() == ids(made)[2]
    assert runner.states() == ["completed", "cancelled", "completed", "cancelled"]


def test_what_was_cancelled_before_its_turn_is_not_retried_before_it(runner: JobRunner) -> None:
    made = runner.group([ADD] * 2, mode="sequential", on_failure="continue", callback=ADD)
    assert made.callback is not None
    later = runner.job_control.job(made.jobs[1]), made.callback
    for job in later:
        runner.job_control.do(control.cancel, job)
        with pytest.raises(InvalidTransition, match="what it waits for has not ended"):
            runner.job_control.do(control.retry, job, job_source="user_cli")
    runner.run()
    for job in later:
        runner.job_control.do(control.retry, job, job_source="user_cli")


def test_one_that_can_not_be_published_has_failed(runner: JobRunner) -> None:
    broken = {**ADD, "options": {"compression": "none"}}
    runner.group([ADD, broken, ADD], mode="sequential", on_failure="continue")
    runner.run()
    assert runner.states() == ["completed", "failed", "pending", "running"]
    runner.run()
    assert runner.states() == ["completed", "failed", "completed", "failed"]


def test_a_time_of_its_own_counts_from_its_turn_on(runner: JobRunner) -> None:
    made = runner.group(
        [ADD, {**ADD, "countdown": 3600}, {**ADD, "countdown": 3600}], mode="sequential"
    )
    # The third's time comes while it waits for the second.
    runner.sql("UPDATE pgbeat.jobs SET run_at = now() WHERE group_position = 2")
    assert due_jobs.take(runner.connection, "default") == []
    runner.run()
    assert runner.states() == ["completed", "scheduled", "scheduled", "running"]
    assert runner.sql("SELECT job_id::text, available_at > now() FROM kombu_message") == [
        (ids(made)[1], True)
    ]
    runner.sql("UPDATE kombu_message SET available_at = now()")
    runner.run()
    assert runner.run() == ids(made)[2]


def test_a_paused_one_holds_up_those_after_it(runner: JobRunner) -> None:
    made = runner.group([ADD, {**ADD, "requires_approval": True}, ADD], mode="sequential")
    runner.run()
    assert runner.states() == ["completed", "paused", "pending", "running"]
    assert runner.messages() == []
    [(is_its_turn, later)] = runner.sql(
        "SELECT NOT (SELECT is_blocked FROM pgbeat.jobs WHERE id = %s), "
        "(SELECT is_blocked FROM pgbeat.jobs WHERE id = %s)",
        *ids(made)[1:],
    )
    assert is_its_turn
    assert later
    # Approved, it is the rest's turn after it.
    admin = Actor("user:boss", is_admin=True)
    with runner.unit(admin).transaction() as unit:
        control.approve(unit, ids(made)[1])
    assert [runner.run(), runner.run()] == ids(made)[1:]


def test_the_turn_of_one_in_a_lane_is_its_place_in_the_line(runner: JobRunner) -> None:
    make_lane(runner.sql, "two", 2)
    laned = {**ADD, "lane": "two"}
    made = runner.group([laned, laned], mode="sequential")
    other = runner.group([laned])
    # There was a slot for it, but its turn has not come.
    assert runner.messages() == ids(made)[:1] + ids(other)
    assert runner.run() == ids(made)[0]
    assert runner.messages() == ids(other) + ids(made)[1:]
    runner.run()
    runner.run()
    assert runner.sql("SELECT count(*) FROM pgbeat.groups WHERE state = 'completed'") == [(2,)]


# -- all at once


def test_parallel_ones_go_at_once_and_the_last_finishes_the_group(runner: JobRunner) -> None:
    made = runner.group([ADD] * 3)
    assert runner.messages() == ids(made)
    taken = [runner.take() for _ in range(3)]
    runner.end(taken[2])
    runner.end(taken[0], "skipped")
    assert runner.states() == ["skipped", "running", "completed", "running"]
    progress = groups.progress(runner.connection, [made.group.id])[made.group.id]
    assert progress == (3, 2, {"skipped": 1, "running": 1, "completed": 1})
    assert progress.percent == pytest.approx(200 / 3)
    runner.end(taken[1])
    assert runner.states() == ["skipped", "completed", "completed", "completed"]


@pytest.mark.parametrize(
    ("on_failure", "to"), [("stop", "cancelled"), ("skip_remaining", "skipped")]
)
def test_a_failure_ends_the_parallel_ones_that_wait(
    runner: JobRunner, on_failure: str, to: str
) -> None:
    make_lane(runner.sql, "none", 0)
    runner.group(
        [ADD, ADD, ADD, {**ADD, "lane": "none"}, {**ADD, "countdown": 99}], on_failure=on_failure
    )
    failing, going = runner.take(), runner.take()
    runner.end(failing, "failed")
    # What runs goes on.
    assert runner.states() == ["failed", "running", to, to, to, "running"]
    assert runner.messages() == []
    runner.end(going)
    assert runner.states() == ["failed", "completed", to, to, to, "failed"]


def test_a_group_that_was_stopped_tries_nothing_again(runner: JobRunner) -> None:
    runner.group([ADD, AGAIN])
    failing, other = runner.take(), runner.take()
    runner.end(failing, "failed")
    runner.end(other, "failed")
    assert runner.states() == ["failed", "failed", "cancelled", "failed"]


def test_one_of_parallel_ones_is_cancelled_by_itself(runner: JobRunner) -> None:
    made = runner.group([ADD] * 2)
    withdraw(runner, ids(made)[0])
    assert runner.states() == ["cancelled", "pending", "running"]
    runner.run()
    assert runner.states() == ["cancelled", "completed", "cancelled"]


# -- in the same moment


def test_a_retry_by_hand_at_the_end_of_its_group(
    make_job_control: Callable[[], JobControl], runner: JobRunner
) -> None:
    """The last member ends before the retry is committed; the group goes on with the retry."""
    made = runner.group([ADD, ADD], on_failure="continue", callback=ADD)
    taken = [runner.take() for _ in range(2)]
    runner.end(taken[0], "failed")
    other = JobRunner(make_job_control(), runner.sql)
    with ThreadPoolExecutor(1) as pool:
        with runner.unit().transaction() as unit:
            control.retry(unit, taken[0], job_source="user_cli")
            last = pool.submit(other.end, taken[1])
            until(lambda: runner.sql(WAITS))
        last.result(30)
    assert groups.get(runner.connection, made.group.id).state == "running"
    assert made.callback is not None
    assert runner.messages() != [str(made.callback.id)]


def test_a_failure_counts_though_the_clock_was_set_back(runner: JobRunner) -> None:
    """As if the group had been made while the clock was an hour ahead; one is retried since."""
    runner.group([ADD, AGAIN], on_failure="continue")
    ahead = "SET created_at = created_at + interval '1 hour'"
    runner.sql(f"UPDATE pgbeat.groups {ahead}")
    runner.sql(f"UPDATE pgbeat.jobs {ahead}")
    runner.run("failed")
    runner.run("failed")
    runner.run()
    assert runner.states()[-1] == "failed"


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
def test_two_that_end_in_the_same_moment(
    make_job_control: Callable[[], JobControl], runner: JobRunner, mode: str
) -> None:
    """Neither transaction sees the other's end: the lock of the group's row puts them in order."""
    made = runner.group([ADD] * 4, on_failure="continue")
    if mode == "sequential":  # two before the next, as if one had been made again by hand
        runner.sql("UPDATE pgbeat.groups SET mode = 'sequential'")
        runner.sql("DELETE FROM kombu_message WHERE job_id = ANY (%s::uuid[])", ids(made)[2:])
        runner.sql(
            "UPDATE pgbeat.jobs SET is_blocked = true, dispatched_at = NULL "
            "WHERE group_position >= 2"
        )
    taken = [runner.take() for _ in range(2 if mode == "sequential" else 4)]
    for job_id in taken[2:]:
        runner.end(job_id)
    other = JobRunner(make_job_control(), runner.sql)
    with ThreadPoolExecutor(1) as pool:
        with connections.transaction(runner.connection):
            ended = executions.record(runner.connection, [runner.ended(taken[0])])
            lifecycle.follow(runner.connection, runner.publisher, ended)
            last = pool.submit(other.end, taken[1])
            until(lambda: runner.sql(WAITS))
        last.result(30)
    if mode == "parallel":
        assert runner.states() == ["completed"] * 5
    else:
        assert runner.messages() == ids(made)[2:3]
        assert runner.states() == ["completed", "completed", "pending", "pending", "running"]


def test_a_turn_that_somebody_held_up_comes_all_the_same(runner: JobRunner) -> None:
    """Nobody waits for a row of a job with the group's in hand: who holds it, or beat, goes on."""
    made = runner.group([ADD] * 3, mode="sequential")
    with connections.engine(runner.settings.url, "tests").begin() as held:
        held.exec_driver_sql("SELECT FROM pgbeat.jobs WHERE id = %s FOR UPDATE", (ids(made)[1],))
        runner.run()
        # Not the one after it.
        assert runner.messages() == []
    assert turns.stuck(runner.connection, "default") == [made.group.id]
    assert turns.stuck(runner.connection, "other") == []
    with connections.transaction(runner.connection):
        lifecycle.follow(runner.connection, runner.publisher, [], [made.group.id])
    assert runner.messages() == ids(made)[1:2]
    assert turns.stuck(runner.connection, "default") == []


def test_beat_goes_on_with_what_was_changed_by_hand(runner: JobRunner, beat: Beat) -> None:
    runner.group([ADD] * 3, mode="sequential", on_failure="skip_remaining")
    runner.sql("UPDATE pgbeat.jobs SET state = 'failed', finished_at = now() WHERE NOT is_blocked")
    beat().run_due()
    assert runner.states() == ["failed", "skipped", "skipped", "failed"]


# -- cancelled


def test_a_group_is_cancelled(runner: JobRunner) -> None:
    made = runner.group([ADD, {**ADD, "countdown": 9}, AGAIN])
    running = runner.take()
    actor = Actor("user:boss", is_admin=True)
    ended = cancel(runner.unit(actor), made.group.id)
    assert (ended.ended, ended.asked) == (2, 1)
    assert runner.states() == ["running", "cancelled", "cancelled", "running"]
    assert (ended.group.state, ended.group.cancelled_by) == ("running", "user:boss")
    # Its worker tells of it.
    runner.end(running, "failed")
    assert runner.states() == ["cancelled", "cancelled", "cancelled", "cancelled"]
    with pytest.raises(InvalidTransition):
        cancel(runner.unit(actor), made.group.id)


def test_a_sequence_is_cancelled_before_the_next_turn(runner: JobRunner) -> None:
    made = runner.group([ADD] * 3, mode="sequential", on_failure="continue")
    running = runner.take()
    cancel(runner.unit(Actor(made.group.created_by)), made.group.id)
    runner.end(running)
    # It had done its work before it heard of it.
    assert runner.states() == ["completed", "cancelled", "cancelled", "cancelled"]
    assert runner.messages() == []


def test_a_retry_does_not_outlive_a_cancelled_group(runner: JobRunner) -> None:
    made = runner.group([AGAIN, ADD], mode="sequential")
    runner.take()
    # As if the worker had told of the failure between the two halves of a cancel.
    with connections.transaction(runner.connection):
        groups.mark_cancelled(runner.connection, made.group.id, "me")
    runner.end(ids(made)[0], "failed")
    assert runner.states() == ["failed", "cancelled", "cancelled", "cancelled"]


def test_only_who_made_a_group_cancels_it(runner: JobRunner) -> None:
    made = runner.group([ADD], created_by="user:alice")
    with pytest.raises(Forbidden):
        cancel(runner.unit(Actor("user:bob")), made.group.id)
    assert runner.states() == ["pending", "running"]
    cancel(runner.unit(Actor("user:alice")), made.group.id)
    assert runner.states() == ["cancelled", "cancelled"]


# -- made


def test_what_members_may_be(runner: JobRunner, app: Celery) -> None:
    add = app.tasks["tests.add"]
    make_template(runner.sql, args="[7, 8]", job_policy={"priority": 4})
    made = runner.group(
        [
            add,
            "tests.add",
            add.s(1, y=3).set(queue="mail"),
            add.signature((2,), countdown=60),
            {"task": add, "args": (5, 6), "priority": 3},
            {"template": "t"},
        ]
    )
    assert [(job.args, job.kwargs, job.priority) for job in made.jobs] == [
        ([], {}, 0),
        ([], {}, 0),
        ([1], {"y": 3}, 0),
        ([2], {}, 0),
        ([5, 6], {}, 3),
        ([7, 8], {}, 4),
    ]
    assert made.jobs[2].queue == "mail"
    assert made.jobs[3].state == "scheduled"
    assert made.jobs[5].template == "t"
    assert [job.group_position for job in made.jobs] == list(range(6))
    assert {job.group_id for job in made.jobs} == {made.group.id}


def test_a_group_is_made_whole_or_not_at_all(runner: JobRunner) -> None:
    cases: list[tuple[Sequence[Any], dict[str, str], type[PgbeatError], str, str]] = [
        ([], {}, InvalidJob, "jobs", "out_of_range"),
        ([ADD], {"mode": "serial"}, InvalidJob, "mode", "unknown"),
        ([ADD], {"on_failure": "skip"}, InvalidJob, "on_failure", "unknown"),
        ([ADD, {"task": "tests.ad"}], {}, UnknownTask, "jobs[1].task", "unknown"),
        ([{**ADD, "lane": "no"}], {}, InvalidJob, "jobs[0].lane", "unknown"),
        ([{**ADD, "lan": "no"}], {}, InvalidJob, "jobs[0].lan", "unknown_field"),
        ([{"tsk": "jobs.add"}], {}, InvalidJob, "jobs[0].tsk", "unknown_field"),
        ([{**ADD, "args": "12"}], {}, InvalidJob, "jobs[0].args", "malformed"),
        ([{**ADD, "countdown": "1"}], {}, InvalidJob, "jobs[0].countdown", "malformed"),
        ([{**ADD, "run_at": "soon"}], {}, InvalidJob, "jobs[0].run_at", "malformed"),
        ([ADD, *[{**ADD, "unique": True}] * 2], {}, NotUnique, "", "not_unique"),
    ]
    for members, options, error, field, code in cases:
        with raises(error, (field, code)):
            runner.group(members, **options)
        for table in ("pgbeat.groups", "pgbeat.jobs", "kombu_message"):
            assert runner.sql(f"SELECT count(*) FROM {table}") == [(0,)]


def test_a_groups_name(runner: JobRunner) -> None:
    cases: list[Any] = ["", "a\0", "n" * 201, 5]
    for name in cases:
        with raises(InvalidJob, ("name", "malformed")):
            runner.group([ADD], name=name)
        assert runner.sql("SELECT count(*) FROM pgbeat.groups") == [(0,)]


@pytest.mark.parametrize("members", ["tests.add", b"ab", ADD, None, iter([ADD])])
def test_members_are_a_list(runner: JobRunner, members: Any) -> None:
    with pytest.raises(TypeError, match="must be a list"):
        runner.group(members)


def test_a_chain_is_no_member(runner: JobRunner, app: Celery) -> None:
    add = app.tasks["tests.add"]
    with raises(InvalidJob, ("jobs[1].jobs", "malformed")):
        runner.group([add.s(), chain(add.s(1), add.s(2), app=app)])


def test_a_group_in_the_callers_transaction(runner: JobRunner) -> None:
    engine = connections.engine(runner.settings.url, "tests")
    with engine.connect() as connection:
        runner.group([ADD, ADD], mode="sequential", connection=connection)
        connection.rollback()
        assert runner.states() == []
        made = runner.group([ADD, ADD], mode="sequential", connection=connection)
        connection.commit()
    assert [runner.run(), runner.run()] == ids(made)


def test_groups_are_found(runner: JobRunner) -> None:
    first = runner.group([ADD], created_by="user:alice").group
    second = runner.group([ADD], created_by="user:bob").group
    found = groups.listing(runner.connection, "default")
    assert found == [second, first]
    assert groups.listing(runner.connection, "default", limit=1) == [second]
    before = (second.created_at, second.id)
    assert groups.listing(runner.connection, "default", before=before) == [first]
    assert groups.listing(runner.connection, "default", created_by="user:alice") == [first]
    assert groups.listing(runner.connection, "default", state="completed") == []
    assert groups.listing(runner.connection, "other") == []
    assert groups.get(runner.connection, str(first.id)) == first
    for wrong in (uuid4(), "nightly"):
        with pytest.raises(NotFound):
            groups.get(runner.connection, wrong)
    with pytest.raises(NotFound):
        groups.get(runner.connection, first.id, namespace="other")


def test_members_are_in_order_their_retries_behind_them(runner: JobRunner) -> None:
    made = runner.group([AGAIN, ADD], on_failure="continue")
    runner.run("failed")
    found = groups.members(runner.connection, made.group.id)
    assert [(job.group_position, job.attempt) for job in found] == [(0, 1), (0, 2), (1, 1)]


# -- the callback


@pytest.mark.parametrize(
    ("how", "outcome", "state"),
    [
        ("completed", "finished", "pending"),
        ("failed", "finished", "pending"),
        ("completed", "completed", "pending"),
        ("failed", "completed", "skipped"),
        ("completed", "failed", "skipped"),
        ("failed", "failed", "pending"),
    ],
)
def test_the_callback_runs_when_the_group_has_ended_so(
    runner: JobRunner, how: Any, outcome: str, state: str
) -> None:
    made = runner.group([ADD, AGAIN], callback=ADD, callback_outcome=outcome)
    assert made.callback is not None
    assert (made.callback.is_blocked, made.callback.group_id) == (True, None)
    assert runner.messages() == ids(made)
    runner.run()
    runner.run("failed")  # it is tried again
    assert runner.job_control.job(made.callback).is_blocked
    runner.run(how)
    assert runner.job_control.job(made.callback).state == state
    assert runner.messages() == ([str(made.callback.id)] if state == "pending" else [])
    assert len(runner.sql("SELECT 1 FROM pgbeat.jobs WHERE id = %s", str(made.callback.id))) == 1


def test_the_callback_of_a_cancelled_group_is_skipped(runner: JobRunner) -> None:
    made = runner.group([ADD], callback=ADD)
    cancel(runner.unit(), made.group.id)
    assert made.callback is not None
    assert runner.job_control.job(made.callback).state == "skipped"


def test_a_callback_can_be_cancelled_before(runner: JobRunner) -> None:
    made = runner.group([ADD], callback=ADD)
    assert made.callback is not None
    runner.job_control.do(control.cancel, made.callback)
    runner.run()
    assert groups.get(runner.job_control.connection, made.group.id).state == "completed"
    assert runner.job_control.job(made.callback).state == "cancelled"


def test_a_callback_goes_through_its_lane_and_knows_its_group(runner: JobRunner) -> None:
    make_lane(runner.sql, "l", limit=1)
    made = runner.group([ADD], mode="sequential", callback={**ADD, "lane": "l", "max_attempts": 2})
    runner.run()
    assert made.callback is not None
    job = runner.job_control.job(made.callback)
    assert job.dispatched_at is not None
    [(payload,)] = runner.sql("SELECT payload::jsonb -> 'headers' FROM kombu_message")
    assert payload["pgbeat_callback_of"] == str(made.group.id)
    redactor = Redactor(runner.unit().actor, {}, {})
    tree = jobs_tree.of_job(runner.job_control.connection, redactor, job)
    assert [(node.kind, node.relation) for node in tree.root.children] == [
        ("job", ""),
        ("job", "body"),
    ]


def test_a_callback_that_can_not_be_is_refused(runner: JobRunner) -> None:
    for callback, field, code in (
        ({**ADD, "depends_on": [0]}, "callback.depends_on", "conflict"),
        ({**ADD, "key": "k"}, "callback.key", "conflict"),
        ({**ADD, "lane": "nowhere"}, "callback.lane", "unknown"),
    ):
        with raises(InvalidJob, (field, code)):
            runner.group([ADD], callback=callback)
    with raises(InvalidJob, ("callback_outcome", "unknown")):
        runner.group([ADD], callback=ADD, callback_outcome="skipped")
    with pytest.raises(NotUnique):
        runner.group([{**ADD, "unique_key": "k"}], callback={**ADD, "unique_key": "k"})
    assert runner.sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)]
