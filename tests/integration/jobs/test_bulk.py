"""Changes of all jobs that a filter matches."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from pgbeat.access.actors import Actor
from pgbeat.errors import Forbidden, InvalidInput, NotFound
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.verbs import bulk, control
from pgbeat.jobs.verbs.bulk import Order, Progress
from tests.support.command_line import Sql
from tests.support.jobs import ADMIN, ALICE, JobControl, messages
from tests.support.rows import make_job, make_lane

RETRY = Order("retry", {"job_source": "user_cli"})
#: Who is recorded.
ROOT = replace(ADMIN, origin="cli")


def carry_out(
    job_control: JobControl, order: Order, which: Filter, actor: Actor = ROOT, **more: Any
) -> Progress:
    """All steps at once; the last one."""
    unit = job_control.unit(actor)
    more.setdefault("until", bulk.preview(unit.connection, actor, order, which).at)
    *_, last = bulk.carry_out(unit, order, which, **more)
    return last


def failed(sql: Sql, number: int = 1, **values: Any) -> list[str]:
    return [make_job(sql, "failed", **values) for _ in range(number)]


def test_what_matches_is_retried_once(job_control: JobControl, sql: Sql) -> None:
    wanted = failed(sql, 3, task="shop.a", error="HTTPError: 503 Service Unavailable")
    failed(sql, task="shop.b", error="ValueError: no")
    failed(sql, task="other", error="HTTPError: 503")
    which = Filter(task="shop.*", error="*503*")
    seen = bulk.preview(job_control.connection, ROOT, RETRY, which)
    assert (seen.number, {str(job.id) for job in seen.first}) == (3, set(wanted))
    done = carry_out(job_control, RETRY, which)
    assert (done.done, done.left, done.position) == (3, {}, None)
    assert len(messages(sql)) == 3
    [(number,)] = sql("SELECT count(*) FROM pgbeat.jobs WHERE retry_of IS NOT NULL")
    assert number == 3
    assert carry_out(job_control, RETRY, which).done == 0


def test_only_what_a_retry_has_replaced_is_deleted(job_control: JobControl, sql: Sql) -> None:
    old, fresh = failed(sql, 2)
    carry_out(job_control, RETRY, Filter(ids=[UUID(old)]))
    assert carry_out(job_control, Order("delete"), Filter(is_retried=True)).done == 1
    assert sql("SELECT id::text FROM pgbeat.jobs WHERE state = 'failed'") == [(fresh,)]
    with pytest.raises(InvalidInput, match="retried only once"):
        carry_out(job_control, RETRY, Filter(is_retried=True))


def test_it_is_one_action_of_the_audit(
    job_control: JobControl, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH", 2)
    failed(sql, 5)
    carry_out(job_control, RETRY, Filter(state="failed"))
    [(verb, kind, actor, after)] = sql("SELECT verb, kind, actor, after FROM pgbeat.audit")
    assert (verb, kind, actor) == ("retry", "jobs", "user:root")
    assert after == {"filter": {"state": "failed"}, "done": 5, "left": {}}


def test_it_goes_on_where_it_stopped(
    job_control: JobControl, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH", 2)
    failed(sql, 5)
    which = Filter(state="failed")
    until = bulk.preview(job_control.connection, ROOT, RETRY, which).at
    first = carry_out(job_control, RETRY, which, until=until, limit=3)
    assert (first.done, first.position is not None) == (3, True)
    later = carry_out(
        job_control, RETRY, which, until=until, after=first.position, action=first.action
    )
    assert (later.done, later.position) == (2, None)
    assert sql("SELECT (after ->> 'done')::int FROM pgbeat.audit") == [(5,)]
    with pytest.raises(NotFound):
        carry_out(job_control, RETRY, which, replace(ROOT, name="user:eve"), action=first.action)


def test_what_was_done_stays_done_and_counted_when_the_rest_fails(
    job_control: JobControl, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH", 2)
    failed(sql, 5)
    whole, calls = control.retry, []

    def retry(*args: Any, **given: Any) -> Job:
        calls.append(args)
        if len(calls) == 4:
            raise RuntimeError
        return whole(*args, **given)

    monkeypatch.setattr(control, "retry", retry)
    with pytest.raises(RuntimeError):
        carry_out(job_control, RETRY, Filter(state="failed"))
    assert sql("SELECT count(*) FROM pgbeat.jobs WHERE retry_of IS NOT NULL") == [(2,)]
    assert sql("SELECT (after ->> 'done')::int FROM pgbeat.audit") == [(2,)]
    assert len(messages(sql)) == 2


def test_jobs_that_came_later_are_left_out(job_control: JobControl, sql: Sql) -> None:
    failed(sql)
    which = Filter(state="failed")
    until = bulk.preview(job_control.connection, ROOT, RETRY, which).at
    failed(sql, created_at="tomorrow")
    assert carry_out(job_control, RETRY, which, until=until).done == 1


def test_one_that_cannot_be_changed_is_left_alone(job_control: JobControl, sql: Sql) -> None:
    failed(sql, 2)
    [bad] = failed(sql, args=None)
    done = carry_out(job_control, RETRY, Filter(state="failed"))
    assert (done.done, done.left) == (2, {"invalid_job": 1})
    assert [(each.job_id, each.code) for each in done.problems] == [(UUID(bad), "invalid_job")]
    assert len(messages(sql)) == 2


def test_what_a_job_did_before_it_was_refused_is_undone(
    job_control: JobControl, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_control.make()
    assert len(messages(sql)) == 1
    from pgbeat.jobs.states import transitions

    monkeypatch.setattr(transitions, "pause", lambda *args: None)
    done = carry_out(job_control, Order("pause"), Filter(state="pending"))
    assert done.left == {"invalid_transition": 1}
    assert len(messages(sql)) == 1  # it had been withdrawn
    assert job_control.job(job).state == "pending"


@pytest.mark.parametrize(
    ("order", "before", "after"),
    [
        (Order("cancel"), "pending", ("cancelled", "l")),
        (Order("pause"), "pending", ("paused", "l")),
        (Order("resume"), "paused", ("pending", "l")),
        (Order("update", {"values": {"lane": "m"}}), "pending", ("pending", "m")),
        (Order("delete"), "completed", None),
    ],
    ids=lambda value: value.verb if isinstance(value, Order) else None,
)
def test_each_verb(
    job_control: JobControl, sql: Sql, order: Order, before: str, after: tuple[str, str] | None
) -> None:
    make_lane(sql, "l", 0)
    make_lane(sql, "m", 0)
    for _ in range(2):
        job_control.make(lane="l")
    if before == "paused":
        carry_out(job_control, Order("pause"), Filter(lane="l"))
    elif before == "completed":
        sql("UPDATE pgbeat.jobs SET state = 'cancelled', finished_at = now() RETURNING id")
    assert carry_out(job_control, order, Filter(lane="l")).done == 2
    assert sql("SELECT state, lane FROM pgbeat.jobs") == ([] if after is None else [after] * 2)


def test_others_than_administrators_change_their_own(job_control: JobControl, sql: Sql) -> None:
    [own] = failed(sql, created_by=ALICE.name)
    failed(sql, created_by="user:bob")
    alice = replace(ALICE, origin="api", tasks=("*",))
    seen = bulk.preview(job_control.connection, alice, RETRY, Filter(state="failed"))
    assert (seen.number, seen.others) == (1, None)
    assert seen.of_others("retry").startswith("only jobs of your own are meant")
    for onlooker in (ALICE, replace(alice, is_viewer=True)):
        seen = bulk.preview(job_control.connection, onlooker, RETRY, Filter(state="failed"))
        assert (seen.number, seen.others) == (1, 1)
        assert seen.of_others("retry").startswith("1 job of others also matches")
    root = bulk.preview(job_control.connection, ROOT, RETRY, Filter(state="failed"))
    assert (root.number, root.others, root.of_others("retry")) == (2, 0, "")
    assert carry_out(job_control, RETRY, Filter(state="failed"), alice).done == 1
    assert sql("SELECT retry_of::text FROM pgbeat.jobs WHERE retry_of IS NOT NULL") == [(own,)]
    with pytest.raises(Forbidden):
        carry_out(job_control, RETRY, Filter(created_by="user:bob"), alice)
    with pytest.raises(Forbidden):
        carry_out(job_control, RETRY, Filter(state="failed"), replace(ALICE, is_read_only=True))


def test_orders_that_are_refused(job_control: JobControl) -> None:
    with pytest.raises(InvalidInput) as refused:
        carry_out(job_control, RETRY, Filter())
    assert refused.value.problems[0].code == "required"
    with pytest.raises(InvalidInput) as refused:
        carry_out(job_control, RETRY, Filter(state="completed"))
    assert refused.value.problems[0].field == "state"


def test_globs_match_names_and_errors(job_control: JobControl, sql: Sql) -> None:
    failed(sql, task="shop.a_b", error="100% of 503\nmore")
    failed(sql, task="shop.axb", error="1000 of 503")

    def number(**which: Any) -> int:
        return bulk.preview(job_control.connection, ROOT, RETRY, Filter(**which)).number

    assert number(task="shop.a_*") == 1
    assert number(task="shop.a?b") == 2
    assert number(task="*") == 2
    assert number(error="100% OF") == 1
    assert number(error="100*more") == 1
    assert number(error="503?") == 0
