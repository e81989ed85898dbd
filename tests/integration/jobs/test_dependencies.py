"""Jobs that depend on others: what a parent's end means for them, told as a worker tells it."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest
from celery import Celery
from sqlalchemy import Connection, Engine, NullPool, create_engine, text

import pgbeat
from pgbeat.beat.maintenance.leader_maintenance import LeaderMaintenance
from pgbeat.database import connections
from pgbeat.errors import Forbidden, InvalidJob, NotUnique
from pgbeat.jobs.explaining import explain
from pgbeat.jobs.flow import dependencies, lifecycle
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.running import executions
from pgbeat.jobs.submitting.submit_many import submit_many
from pgbeat.jobs.verbs import bulk, control
from pgbeat.jobs.verbs.bulk import Order
from pgbeat.jobs.writing import submissions
from tests.support.databases import sqlalchemy_url
from tests.support.explained_plans import pages
from tests.support.jobs import ADMIN, BOB, JobControl, JobRunner
from tests.support.problems import raises
from tests.support.processes import until
from tests.support.rows import make_lane
from tests.support.threads import WAITS

ADD = {"task": "tests.add", "max_attempts": 1}


def test_it_runs_when_the_last_of_its_parents_has_completed(runner: JobRunner) -> None:
    first, second = runner.submit(), runner.submit()
    made = runner.submit(depends_on=[first, str(second.id)])
    assert (made.is_blocked, made.unfinished_parents, made.dispatched_at) == (True, 2, None)
    assert runner.messages() == [str(first.id), str(second.id)]
    runner.run()
    assert runner.now(made).unfinished_parents == 1
    assert runner.messages() == [str(second.id)]
    runner.run()
    assert (runner.now(made).is_blocked, runner.now(made).unfinished_parents) == (False, 0)
    assert runner.messages() == [str(made.id)]
    runner.run()
    assert runner.now(made).state == "completed"


@pytest.mark.parametrize(
    ("how", "needs", "state"),
    [
        ("failed", "completed", "skipped"),
        ("skipped", "completed", "skipped"),
        ("failed", "finished", "pending"),
        ("skipped", "finished", "skipped"),
    ],
)
def test_how_a_parent_ends_decides(runner: JobRunner, how: Any, needs: str, state: str) -> None:
    parent, other = runner.submit(), runner.submit(lane=None)
    made = runner.submit(depends_on=[parent], depends_on_outcome=needs)
    last = runner.submit(depends_on=[made, other])
    runner.run(how)
    assert runner.now(made).state == state
    assert runner.now(last).state == ("skipped" if state == "skipped" else "pending")
    if state == "skipped":
        assert str(parent.id) in str(runner.now(made).error)
        assert str(made.id) in str(runner.now(last).error)


def test_a_parent_that_is_cancelled_has_its_dependents_skipped(runner: JobRunner) -> None:
    parent = runner.submit()
    made = runner.submit(depends_on=[parent], depends_on_outcome="finished")
    runner.job_control.do(control.cancel, parent)
    assert runner.now(made).state == "skipped"


@pytest.mark.parametrize(("how", "state"), [("completed", "pending"), ("failed", "skipped")])
def test_the_retry_of_one_that_was_cancelled_waits_for_its_parents(
    runner: JobRunner, how: Any, state: str
) -> None:
    parent = runner.submit(max_attempts=2, retry_base=0)
    made = runner.submit(depends_on=[parent])
    runner.job_control.do(control.cancel, made)
    runner.run("failed")
    again = runner.job_control.do(control.retry, made, job_source="user_cli")
    assert (again.unfinished_parents, again.dispatched_at) == (1, None)
    runner.run(how)
    assert runner.now(again).state == state
    if state == "skipped":
        last = runner.job_control.do(control.retry, again, job_source="user_cli")
        assert last.dispatched_at is not None


def test_a_graph_that_was_cancelled_runs_in_its_order_again(runner: JobRunner) -> None:
    """Also if a parent is younger than its dependents: it is a retry."""
    first = runner.submit(kwargs={"x": 1}, max_attempts=2, retry_base=0)
    both = [runner.submit(kwargs={"x": 2}, depends_on=[first]) for _ in range(2)]
    runner.submit(kwargs={"x": 3}, depends_on=both)
    runner.run("failed")
    for states in (("cancelled", "skipped"), ("failed", "cancelled", "skipped")):
        in_bulk(runner, Order("cancel"), Filter(task="tests.add"))
        retry = Order("retry", {"job_source": "user_cli"})
        assert in_bulk(runner, retry, Filter(task="tests.add", states=states)) == 4
        assert len(runner.messages()) == 1
    ran = [runner.job_control.job(first._replace(id=UUID(runner.run()))) for _ in range(4)]
    assert [dict(job.kwargs or {})["x"] for job in ran] == [1, 2, 2, 3]


def in_bulk(runner: JobRunner, order: Order, which: Filter) -> int:
    """Changes all jobs that match, and returns their number."""
    until = bulk.preview(runner.connection, ADMIN, order, which).at
    *_, last = bulk.carry_out(runner.unit(), order, which, until=until)
    return last.done


def test_the_retry_of_a_parent_takes_its_place(runner: JobRunner) -> None:
    parent = runner.submit(max_attempts=2, retry_base=0)
    made = runner.submit(depends_on=[parent])
    runner.run("failed")
    assert (runner.now(made).state, runner.now(made).unfinished_parents) == ("pending", 1)
    parents = dependencies.of_jobs(runner.job_control.connection, [made.id])[made.id]
    assert [(each.id, each.outcome) for each in parents] == [
        (parent.id, "retried"),
        (runner.now(parent).retried_by, None),
    ]
    runner.run()
    assert not runner.now(made).is_blocked


def test_parents_that_have_ended_are_counted_at_once(runner: JobRunner) -> None:
    completed, failed = runner.submit(), runner.submit(max_attempts=2, retry_base=0)
    runner.run()
    runner.run("failed")
    assert not runner.submit(depends_on=[completed]).is_blocked
    waiting = runner.submit(depends_on=[completed, failed])
    assert waiting.unfinished_parents == 1  # the retry
    runner.run("failed")
    assert runner.now(waiting).state == "skipped"
    assert runner.submit(depends_on=[failed]).state == "skipped"


def test_a_job_in_a_lane_goes_into_its_line(runner: JobRunner) -> None:
    make_lane(runner.sql, "l", limit=1)
    parent = runner.submit()
    made = runner.submit(lane="l", depends_on=[parent])
    assert runner.now(made).dispatched_at is None
    runner.run()
    assert runner.now(made).dispatched_at is not None


def test_a_paused_one_stays_paused(runner: JobRunner) -> None:
    parent = runner.submit()
    made = runner.submit(depends_on=[parent])
    runner.job_control.do(control.pause, made)
    runner.run()
    assert (runner.now(made).state, runner.now(made).is_blocked) == ("paused", False)
    assert runner.job_control.do(control.resume, made).dispatched_at is not None


def test_a_resumed_one_still_waits(runner: JobRunner) -> None:
    made = runner.submit(depends_on=[runner.submit()], requires_approval=True)
    assert runner.job_control.do(control.approve, made).dispatched_at is None
    assert runner.now(made).state == "pending"


@pytest.mark.parametrize("ends_meanwhile", [False, True])
def test_where_it_waits_is_said(runner: JobRunner, ends_meanwhile: bool) -> None:
    made = runner.submit(depends_on=[runner.submit(), runner.submit()])
    if ends_meanwhile:  # after its row was read
        runner.run()
        runner.run()
    with connections.transaction(runner.job_control.connection) as connection:
        where = explain.of_job(connection, made, connections.now(connection))
    assert where.cause == "parents"
    assert ("just now" in where.sentence) is ends_meanwhile


def test_what_can_not_be_depended_on_is_refused(runner: JobRunner, app: Celery) -> None:
    parent = runner.job_control.make(task="tests.add", actor=ADMIN)
    refused: list[tuple[dict[str, Any], str, str]] = [
        ({"depends_on": str(parent.id)}, "depends_on", "malformed"),
        ({"depends_on": ["one"]}, "depends_on", "malformed"),
        ({"depends_on": [uuid4()]}, "depends_on", "unknown"),
        ({"depends_on": [parent], "depends_on_outcome": "failed"}, "depends_on_outcome", "unknown"),
        ({"depends_on": [parent], "args": [{1}]}, "args", "malformed"),
    ]
    for given, field, code in refused:
        arguments: Any = given.pop("args", [])
        with raises(InvalidJob, (field, code)):
            pgbeat.submit(
                "tests.add", *arguments, app=app, options={"serializer": "pickle"}, **given
            )
    for _ in range(2):  # the queue is there then
        with raises(InvalidJob, ("depends_on_outcome", "unknown")):
            runner.submit(depends_on_outcome="failed")
    with raises(InvalidJob, ("jobs[0].depends_on_outcome", "unknown")):
        submit_many([{**ADD, "depends_on_outcome": "failed"}], app=app)
    with pytest.raises(Forbidden):
        runner.job_control.order(1, task="tests.add", actor=BOB, depends_on=[parent])


def test_a_duplicate_depends_on_nothing_more(runner: JobRunner) -> None:
    first = runner.submit(unique_key="k")
    assert runner.submit(unique_key="k", depends_on=[runner.submit()]).id == first.id
    assert runner.sql("SELECT count(*) FROM pgbeat.dependencies") == [(0,)]


def test_many_at_once(runner: JobRunner, app: Celery) -> None:
    parent = runner.submit()
    ids = submit_many([{**ADD, "depends_on": [parent]} for _ in range(150)], app=app)
    assert runner.messages() == [str(parent.id)]
    runner.run()
    assert sorted(runner.messages()) == sorted(ids)
    with raises(InvalidJob, ("jobs[0].key", "conflict")):
        submit_many([{**ADD, "key": "a"}], app=app)


def test_members_form_a_graph(runner: JobRunner) -> None:
    outer = runner.submit()
    made = runner.group(
        [
            {**ADD, "key": "merge", "depends_on": ["left", 2]},
            {**ADD, "key": "left", "depends_on": [outer]},
            ADD,
        ]
    )
    merge, left, right = (str(job.id) for job in made.jobs)
    assert runner.messages() == [str(outer.id), right]
    runner.run()
    assert runner.messages() == [right, left]
    runner.run()
    runner.run()
    assert runner.messages() == [merge]
    runner.run()
    assert runner.states() == ["completed", "completed", "completed", "completed"]


@pytest.mark.parametrize(
    ("on_failure", "left"),
    [
        ("stop", ["failed", "cancelled", "cancelled", "failed"]),
        ("skip_remaining", ["failed", "skipped", "skipped", "failed"]),
        ("continue", ["failed", "skipped", "pending", "running"]),
    ],
)
def test_the_groups_rule_holds_for_what_is_not_dependent(
    runner: JobRunner, on_failure: str, left: list[str]
) -> None:
    runner.group(
        [ADD, {**ADD, "depends_on": [0]}, {**ADD, "countdown": 900}], on_failure=on_failure
    )
    runner.run("failed")
    assert runner.states() == [state.replace("pending", "scheduled") for state in left]


def test_what_can_not_be_a_graph_is_refused(runner: JobRunner) -> None:
    for members, field, code in (
        ([{**ADD, "depends_on": [1]}, {**ADD, "depends_on": [0]}], "jobs", "cycle"),
        ([{**ADD, "depends_on": [0]}], "jobs", "cycle"),
        ([{**ADD, "depends_on": [1]}], "jobs[0].depends_on", "unknown"),
        ([{**ADD, "depends_on": ["b"]}], "jobs[0].depends_on", "unknown"),
        ([{**ADD, "key": "b"}, {**ADD, "key": "b"}], "jobs[1].key", "conflict"),
        ([{**ADD, "key": "7"}], "jobs[0].key", "malformed"),
    ):
        with raises(InvalidJob, (field, code)):
            runner.group(members)
    with raises(InvalidJob, ("jobs[1].depends_on", "conflict")):
        runner.group([ADD, {**ADD, "depends_on": [0]}], mode="sequential")
    with pytest.raises(NotUnique):
        runner.group([{**ADD, "unique_key": "k"}, {**ADD, "unique_key": "k"}])
    assert runner.sql("SELECT count(*) FROM pgbeat.dependencies") == [(0,)]


def test_parents_that_end_at_the_same_time_are_both_counted(
    make_job_control: Callable[[], JobControl], runner: JobRunner
) -> None:
    """The second waits until the first has committed, and then counts what is left."""
    made = runner.submit(depends_on=[runner.submit(), runner.submit()])
    ended = [runner.ended(runner.take()) for _ in range(2)]
    other = make_job_control()
    with ThreadPoolExecutor() as pool:
        with connections.transaction(runner.connection) as connection:
            first = executions.record(connection, ended[:1])
            lifecycle.follow(connection, runner.publisher, first)
            second = pool.submit(other.record, ended[1])
            until(lambda: runner.sql(WAITS))
        second.result(20)
    assert not runner.now(made).is_blocked


def test_a_parent_that_ends_before_the_commit_is_seen_by_beat(
    runner: JobRunner, app: Celery, engine: Engine
) -> None:
    parent, failing = runner.submit(), runner.submit()
    with engine.begin() as own:
        made = runner.submit(depends_on=[parent], connection=own)
        skipped = runner.submit(depends_on=[failing], connection=own)
        runner.run()
        runner.run("failed")
    assert runner.now(made).unfinished_parents == 1
    maintenance = LeaderMaintenance(app, runner.job_control.settings, runner.job_control.publisher)
    maintenance.step(runner.job_control.connection, is_due=False, is_idle=False)
    assert not runner.now(made).is_blocked
    assert runner.messages() == [str(made.id)]
    assert runner.now(skipped).state == "skipped"


@pytest.fixture
def own(database: str) -> Iterator[Connection]:
    """A caller's connection; the transaction that a test opens in it stays open."""
    options = {"options": "-c lock_timeout=5s"}
    engine = create_engine(sqlalchemy_url(database), poolclass=NullPool, connect_args=options)
    with engine.connect() as connection:
        yield connection


def test_an_open_submitter_keeps_no_end_from_being_recorded(
    runner: JobRunner, own: Connection
) -> None:
    """Nor other dependents of the parent from being unblocked, or submitted."""
    for connection in (own, runner.connection):
        connection.execute(text("SET lock_timeout = '2s'"))
    parent = runner.submit()
    first = runner.submit(depends_on=[parent])
    mine = runner.submit(depends_on=[parent], connection=own)
    second = runner.submit(depends_on=[parent])
    runner.run()
    assert [runner.now(each).is_blocked for each in (first, second)] == [False, False]
    late = runner.submit(depends_on=[parent], connection=own)
    assert not late.is_blocked
    assert not runner.submit(depends_on=[parent]).is_blocked
    own.commit()
    assert runner.now(mine).is_blocked  # until beat looks
    runner.run()
    assert runner.now(first).state == "completed"


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_submitter_reads_no_other_dependents(
    runner: JobRunner, own: Connection, app: Celery, has_ended: bool
) -> None:
    """However many there are: a thousand must not cost a million."""
    parent = runner.submit()
    submit_many([{**ADD, "depends_on": [parent.id]}] * 50, app=app)
    if has_ended:
        runner.run()
    own.execute(text("SET enable_seqscan = off"))
    own.commit()
    runner.submit(depends_on=[parent], connection=own)
    read = (
        "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_all_tables WHERE relname = :t"
    )
    for table in ("dependencies", "unfinished_jobs"):
        assert own.scalar(text(read), {"t": table}) < 15


def test_a_parents_retry_that_ends_before_the_commit_is_seen_after_it(
    runner: JobRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry has taken the parent's place by then."""
    parent = runner.submit(max_attempts=2, retry_base=0)
    runner.run("failed")
    settle = submissions._settle

    def settle_slowly(*args: Any) -> Any:
        found = settle(*args)
        runner.run()
        return found

    monkeypatch.setattr(submissions, "_settle", settle_slowly)
    made = runner.submit(depends_on=[parent])
    assert not runner.now(made).is_blocked


def test_a_parent_that_was_deleted_has_its_dependents_skipped(
    runner: JobRunner, app: Celery
) -> None:
    made = runner.submit(depends_on=[runner.submit()])
    runner.sql("DELETE FROM pgbeat.jobs WHERE id <> %s", str(made.id))
    LeaderMaintenance(app, runner.job_control.settings, runner.job_control.publisher).step(
        runner.job_control.connection, is_due=False, is_idle=False
    )
    assert runner.now(made).state == "skipped"


@pytest.mark.parametrize("is_analyzed", [False, True])
def test_each_round_looks_at_a_page_of_the_dependencies(
    runner: JobRunner, monkeypatch: pytest.MonkeyPatch, *, is_analyzed: bool
) -> None:
    """Of 900 jobs that wait, one's parent is gone; some wait for five, of which one has ended."""
    runner.sql(
        "INSERT INTO pgbeat.jobs (id, task, job_source, created_by, is_system_job, is_blocked, "
        "unfinished_parents) SELECT gen_random_uuid(), 't', 'system', 'me', false, n > 1, "
        "CASE WHEN n > 1 THEN 1 ELSE 0 END FROM generate_series(1, 901) AS n"
    )
    [(parent,)] = runner.sql("SELECT id FROM pgbeat.jobs WHERE NOT is_blocked")
    runner.sql(
        "INSERT INTO pgbeat.dependencies (job_id, parent_id, outcome) SELECT j.id, "
        "CASE WHEN n = 1 THEN %s ELSE gen_random_uuid() END, "
        "CASE WHEN n > 1 THEN 'completed' END FROM (SELECT id, row_number() OVER () AS number "
        "FROM pgbeat.jobs WHERE is_blocked) AS j, "
        "generate_series(1, CASE WHEN j.number <= 20 THEN 5 ELSE 1 END) AS n",
        parent,
    )
    [(last,)] = runner.sql("SELECT max(job_id::text) FROM pgbeat.dependencies")
    gone = uuid4()
    runner.sql(
        "UPDATE pgbeat.dependencies SET parent_id = %s WHERE job_id = %s AND outcome IS NULL",
        gone,
        last,
    )
    if is_analyzed:
        runner.sql("ANALYZE pgbeat.dependencies, pgbeat.unfinished_jobs")
    monkeypatch.setattr(dependencies, "PAGE", 100)
    overlooked = dependencies.Overlooked("default")
    for _ in range(2):
        found = [overlooked.find(runner.job_control.connection) for _ in range(10)]
        assert found == [[]] * 9 + [[gone]]
    a_page = f"SELECT * FROM pgbeat.overlooked_parents('default', '{UUID(int=0)}', %s, 100)"
    pages(
        runner.job_control.connection, a_page, UUID(int=0)
    )  # the first time, the function is read, too
    assert pages(runner.job_control.connection, a_page, UUID(int=0)) < 900
