"""Chords whose size is told after their parts have returned."""

import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from celery import Celery, chain, chord, group
from celery._state import _task_stack
from celery.app.task import Context

from pgbeat.broker.messages import CONSUMER, JOB_HEADER
from pgbeat.results import chords, expiry
from pgbeat.results.backend import ResultBackend
from pgbeat.results.store import Store
from tests.support.rows import Sql
from tests.support.simulated_workers import FakeWorkers
from tests.support.threads import together, waiting
from tests.support.transport_workers import transport_url


def make_app(database: str) -> Celery:
    """Returns an app whose broker and results are in that database."""
    url = transport_url(database)
    app = Celery("sizes", broker=url, backend=url, set_as_current=False)

    @app.task(name="sizes.member", acks_late=True, shared=False)
    def member() -> None:
        """A chord's member."""

    @app.task(name="sizes.body", shared=False)
    def body(parts: Any) -> Any:
        return parts

    return app


@pytest.fixture
def app(database: str) -> Iterator[Celery]:
    with make_app(database) as app:
        yield app


@pytest.fixture
def backend(app: Celery) -> ResultBackend:
    backend = app.backend
    assert isinstance(backend, ResultBackend)
    return backend


def return_part(backend: ResultBackend, number: int, chord: str = "c1") -> None:
    body = backend.app.signature("sizes.body", options={"task_id": f"body of {chord}"})
    request = Context(
        id=f"{chord}-{number}", group=chord, group_index=number, chord=body, task="sizes.member"
    )
    backend.mark_as_done(request.id, number, request)


def bodies(sql: Sql) -> list[Any]:
    """Returns the arguments of the bodies that were published."""
    found = sql(
        "SELECT convert_from(decode(payload::json ->> 'body', 'base64'), 'UTF8')::json -> 0 -> 0 "
        "FROM kombu_message WHERE payload::json -> 'headers' ->> 'task' = 'sizes.body'"
    )
    return [row[0] for row in found]


def test_a_size_that_comes_last_ends_the_chord(backend: ResultBackend, sql: Sql) -> None:
    for number in range(3):
        return_part(backend, number)
    assert bodies(sql) == []
    backend.set_chord_size("c1", 3)
    assert bodies(sql) == [[0, 1, 2]]
    assert sql("SELECT ended FROM pgbeat.chords") == [(True,)]
    for table in ("chord_parts", "chord_bodies"):
        assert sql(f"SELECT count(*) FROM pgbeat.{table}") == [(0,)]
    # Neither a repetition nor a redelivered member runs it again.
    backend.set_chord_size("c1", 3)
    return_part(backend, 1)
    assert len(bodies(sql)) == 1


@pytest.mark.parametrize("is_again", [False, True])
def test_a_chord_that_is_applied_again(
    backend: ResultBackend, app: Celery, sql: Sql, is_again: bool
) -> None:
    """It begins once more, unless the task that sends it may have sent it before."""
    backend.set_chord_size("c1", 1)
    return_part(backend, 0)
    sender = app.tasks["sizes.member"]
    _task_stack.push(sender)
    sender.push_request(called_directly=False, delivery_info={"redelivered": is_again})
    try:
        backend.apply_chord(("c1", [app.AsyncResult("c1-0")]), None)
        backend.set_chord_size("c1", 1)
    finally:
        sender.pop_request()
        _task_stack.pop()
    assert sql("SELECT ended, done FROM pgbeat.chords") == [(is_again, int(is_again))]


def test_a_size_that_comes_before_the_last_part(backend: ResultBackend, sql: Sql) -> None:
    return_part(backend, 0)
    backend.set_chord_size("c1", 2)
    assert bodies(sql) == []
    return_part(backend, 1)
    assert bodies(sql) == [[0, 1]]
    assert sql("SELECT count(*) FROM pgbeat.chord_bodies") == [(0,)]


def test_a_size_that_comes_first_keeps_no_body(backend: ResultBackend, sql: Sql) -> None:
    backend.set_chord_size("c1", 2)
    return_part(backend, 0)
    assert sql("SELECT count(*) FROM pgbeat.chord_bodies") == [(0,)]


def test_a_part_that_failed_fails_the_chord(backend: ResultBackend, sql: Sql) -> None:
    body = backend.app.signature("sizes.body", options={"task_id": "body"})
    request = Context(id="50% done", group="c1", group_index=0, chord=body, task="sizes.member")
    backend.mark_as_failure("50% done", ValueError("it fails"), request=request)
    backend.set_chord_size("c1", 1)
    assert bodies(sql) == []
    assert backend.app.AsyncResult("body").state == "FAILURE"
    assert "50% done raised ValueError('it fails')" in str(backend.app.AsyncResult("body").result)


def requests(sql: Sql) -> list[Context]:
    """Returns what workers would know of the tasks that were sent."""
    found = sql(
        "SELECT payload::json -> 'headers', "
        "convert_from(decode(payload::json ->> 'body', 'base64'), 'UTF8')::json -> 2 "
        "FROM kombu_message ORDER BY id"
    )
    return [Context({**headers, **embed}, task="sizes.member") for headers, embed in found]


@pytest.mark.parametrize(
    "canvas",
    [
        lambda member, body: chain(member, group(body, chain(body, body), chord([body], body))),
        lambda member, body: chain(member, chord([body, body], group(body, body))),
        lambda member, body: chain(group(member, member), body, group(body, body)),
        lambda member, body: chord([chain(member, group(body, body)), member], body),
        lambda member, body: chord([member], chord([body, body], body)),
        lambda member, body: chord([member], chain(body, group(body, body))),
        lambda member, body: chord([chord([member], chain(body, group(body, body)))], body),
    ],
)
def test_a_failure_ends_the_results_of_all_that_waited_for_it(
    app: Celery, backend: ResultBackend, sql: Sql, canvas: Any
) -> None:
    """Also those of groups and chords, which are results of other tasks."""
    whole = canvas(app.tasks["sizes.member"].si(), app.tasks["sizes.body"].s()).apply_async()
    first, *others = requests(sql)
    backend.mark_as_failure(first.id, ValueError("it fails"), request=first)
    for other in others:
        backend.mark_as_done(other.id, 1, request=other)
    ends = getattr(whole, "results", [whole])
    assert [end.state for end in ends] == ["FAILURE"] * len(ends)


@pytest.mark.parametrize(("holder", "state"), [(7, "FAILURE"), (8, "PENDING"), (None, "PENDING")])
def test_a_part_fails_the_chord_only_while_its_run_has_the_message(
    fake_workers: FakeWorkers, holder: int | None, state: str
) -> None:
    """Its process was killed, or the chain's next link could not be sent, as its claim was lost."""
    part, sql = fake_workers.job(), fake_workers.sql
    for consumer in 7, 8:
        sql("INSERT INTO pgbeat.consumers (id, name) VALUES (%s, 'lives')", consumer)
        sql("SELECT pg_advisory_lock(1885823587, %s)", consumer)
    sql("UPDATE kombu_message SET visible = %s, claimed_by = %s", holder is None, holder)
    with make_app(fake_workers.dsn) as app:
        backend = app.backend
        backend.set_chord_size("c1", 1)
        body = app.signature("sizes.body", options={"task_id": "body"})
        request = Context(id=part, group="c1", group_index=0, chord=body, task="sizes.member")
        request.update({JOB_HEADER: True, "properties": {"delivery_info": {CONSUMER: 7}}})
        backend.mark_as_failure(part, ValueError("it fails"), request=request)
        assert {app.AsyncResult(each).state for each in (part, "body")} == {state}


def test_added_parts_count(backend: ResultBackend, sql: Sql) -> None:
    return_part(backend, 0)
    backend.add_to_chord("c1", None)
    backend.set_chord_size("c1", 1)
    assert bodies(sql) == []
    return_part(backend, 1)
    assert bodies(sql) == [[0, 1]]


def test_a_body_that_cannot_be_kept_is_said(
    backend: ResultBackend, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    """The part counts all the same, and a size that comes in time ends the chord."""
    body = backend.app.signature("sizes.body", kwargs={"odd": object()})
    request = Context(id="m", group="c1", group_index=0, chord=body, task="sizes.member")
    backend.mark_as_done("m", 1, request)
    assert "Chord c1: its body can't be kept" in caplog.text
    assert sql("SELECT done FROM pgbeat.chords") == [(1,)]


def test_bodies_expire_with_their_chords(backend: ResultBackend, sql: Sql) -> None:
    return_part(backend, 0)
    sql("UPDATE pgbeat.chords SET expires_at = now() - interval '1 s'")
    backend.cleanup()
    for table in ("chords", "chord_parts", "chord_bodies"):
        assert sql(f"SELECT count(*) FROM pgbeat.{table}") == [(0,)]


def age(sql: Sql, table: str, hours: int) -> None:
    """Has the rows of a table expire so much earlier."""
    sql(f"UPDATE pgbeat.{table} SET expires_at = expires_at - make_interval(hours => {hours})")


def test_a_chord_that_takes_longer_than_results_are_kept(backend: ResultBackend, sql: Sql) -> None:
    """Each part renews it, and its header's structure stays with it."""
    result, app = backend.app.AsyncResult, backend.app
    inner = app.GroupResult("inner", [result("c1-1"), result("c1-2")])
    backend.apply_chord(("c1", [result("c1-0"), inner]), None)
    backend.set_chord_size("c1", 3)
    for number in range(3):
        return_part(backend, number)
        for table in ("chords", "result_groups", "results"):
            age(sql, table, 20)
        backend.cleanup()
    assert bodies(sql) == [[0, [1, 2]]]
    age(sql, "chords", 20)
    backend.cleanup()
    for table in ("chords", "chord_parts", "result_groups"):
        assert sql(f"SELECT count(*) FROM pgbeat.{table}") == [(0,)]


def test_no_part_counts_once_a_chord_has_expired(
    backend: ResultBackend,
    sql: Sql,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise it might run its body without parts that are deleted already."""
    monkeypatch.setattr(expiry, "BATCH", 1)
    backend.set_chord_size("c1", 4)
    for number in range(3):
        return_part(backend, number)
    age(sql, "chords", 25)
    with backend.store.work() as working:
        expiry.delete_expired(working.connection)
    assert sql("SELECT count(*) FROM pgbeat.chord_parts") == [(2,)]
    return_part(backend, 3)
    assert bodies(sql) == []
    assert "Chord c1 has expired, and its body never runs: 3 of 4 parts had returned" in caplog.text
    backend.cleanup()
    for table in ("chords", "chord_parts"):
        assert sql(f"SELECT count(*) FROM pgbeat.{table}") == [(0,)]


def test_a_size_and_the_last_part_at_once(backend: ResultBackend, database: str, sql: Sql) -> None:
    """Whichever is later ends the chord, and only that one."""
    other = make_app(database)
    # A connection of its own.
    arguments = {"application_name": "other"}
    other.conf.result_backend_transport_options = {"connect_args": arguments}
    backends = [backend, other.backend]
    assert backends[0].store is not backends[1].store
    for n in range(30):
        chord = f"c{n}"
        return_part(backend, 0, chord)
        tell = partial(backends[0].set_chord_size, chord, 2)
        give = partial(return_part, backends[1], 1, chord)
        together([tell, give])
    assert bodies(sql) == [[0, 1]] * 30


@pytest.mark.parametrize("code", ["53200", "57014", "40P01", "55P03"])
def test_an_error_that_passes_as_the_body_is_sent(
    backend: ResultBackend, sql: Sql, code: str
) -> None:
    """It fails no chord: the part is counted again, in another transaction."""
    sql("CREATE SEQUENCE refused")
    sql(
        "CREATE FUNCTION refuse_one() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF nextval('refused') = 1 THEN RAISE EXCEPTION 'not now' USING ERRCODE = '{code}'; "
        "END IF; RETURN NEW; END $$"
    )
    sql(
        "CREATE TRIGGER refuse_one BEFORE INSERT ON kombu_message "
        "FOR EACH ROW EXECUTE FUNCTION refuse_one()"
    )
    backend.set_chord_size("c1", 1)
    return_part(backend, 0)
    assert bodies(sql) == [[0]]
    assert sql("SELECT last_value FROM refused") == [(2,)]


def test_a_part_that_returns_again_while_its_chord_ends_leaves_nothing(
    backend: ResultBackend, database: str, sql: Sql
) -> None:
    """Two workers run it: one lost its claim."""
    backend.set_chord_size("c1", 2)
    return_part(backend, 0)
    with psycopg.connect(database) as last:
        last.execute("UPDATE pgbeat.chords SET ended = true")
        last.execute("DELETE FROM pgbeat.chord_parts")
        with waiting(sql, partial(return_part, backend, 0)):
            last.commit()
    assert sql("SELECT ended, done FROM pgbeat.chords") == [(True, 1)]
    assert sql("SELECT count(*) FROM pgbeat.chord_parts") == [(0,)]


def test_a_worker_killed_while_it_fails_a_chain_that_is_a_part(
    backend: ResultBackend, app: Celery
) -> None:
    """Nothing of it happened: a result without the rest of its chain would end nothing more."""
    backend.set_chord_size("c1", 1)
    body = app.signature("sizes.body", options={"task_id": "body"})
    options = {"task_id": "m2", "group_id": "c1", "chord": body}
    last = {"task": "sizes.member", "options": options}
    request = Context(id="m1", task="sizes.member", chain=[last])
    child = os.fork()
    if child == 0:
        try:
            app._after_fork()
            _die_after("store_result")
            backend.mark_as_revoked("m1", "terminated", request)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert [app.AsyncResult(task).state for task in ("m1", "m2", "body")] == ["PENDING"] * 3
    backend.mark_as_revoked("m1", "terminated", request)
    states = [app.AsyncResult(task).state for task in ("m1", "m2", "body")]
    assert states == ["REVOKED", "REVOKED", "FAILURE"]


@pytest.mark.parametrize("step", ["set_chord_size", "read_chord_body", "end_chord", "publish"])
def test_a_caller_killed_while_it_tells_the_size(
    backend: ResultBackend, app: Celery, sql: Sql, step: str
) -> None:
    """Nothing of it happened: telling it again ends the chord, once."""
    for number in range(2):
        return_part(backend, number)
    child = os.fork()
    if child == 0:
        try:
            app._after_fork()
            _die_after(step)
            backend.set_chord_size("c1", 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert bodies(sql) == []
    assert sql("SELECT size, done, ended FROM pgbeat.chords") == [(None, 2, False)]
    backend.set_chord_size("c1", 2)
    assert bodies(sql) == [[0, 1]]


def _die_after(step: str) -> None:
    """Has this process die after a statement, or once the body is published and not committed."""
    run, end = Store.run, chords._end

    def dying_run(self: Store, statement: Any, *parameters: Any) -> Any:
        found = run(self, statement, *parameters)
        if statement.label == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    def dying_end(*arguments: Any) -> None:
        end(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    Store.run = dying_run  # type: ignore[method-assign]
    if step == "publish":
        chords._end = dying_end  # type: ignore[assignment]
