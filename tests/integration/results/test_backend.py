"""What the backend stores, and what is read of it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pytest
from celery import Celery, states
from celery.app.task import Context
from celery.exceptions import TimeoutError as ResultTimeout
from celery.result import GroupResult, ResultSet
from celery.utils.objects import Bunch
from kombu.exceptions import ContentDisallowed, EncodeError

from pgbeat.results.backend import ResultBackend
from tests.support.databases import end_sessions
from tests.support.processes import until
from tests.support.rows import Sql
from tests.support.transport_workers import transport_url


@pytest.fixture
def make_app(database: str) -> Callable[..., Celery]:
    """Returns an app whose results are in the test's database."""

    def make(**settings: Any) -> Celery:
        url = transport_url(database)
        app = Celery("results", broker=url, backend=url, set_as_current=False)
        app.conf.update(settings)
        return app

    return make


@pytest.fixture
def app(make_app: Callable[..., Celery]) -> Celery:
    return make_app()


@pytest.fixture
def backend(app: Celery) -> ResultBackend:
    return backend_of(app)


def backend_of(app: Celery) -> ResultBackend:
    backend = app.backend
    assert isinstance(backend, ResultBackend)
    return backend


VALUES = [
    None,
    0,
    "",
    "é\0\ud800",
    b"\xff\0\xfe",
    [1, {"a": [None]}],
    1.5,
    10**400,
    {"at": datetime.now(UTC)},
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_result_is_read_as_it_was_stored(app: Celery, backend: ResultBackend, value: Any) -> None:
    backend.mark_as_done("t1", value)
    assert app.AsyncResult("t1").get(timeout=0) == value


def test_how_the_database_writes_bytes_changes_nothing(app: Celery, sql: Sql) -> None:
    [(name,)] = sql("SELECT current_database()")
    sql(f"ALTER DATABASE \"{name}\" SET bytea_output = 'escape'")
    backend_of(app).mark_as_done("t1", "é\\'")
    assert app.AsyncResult("t1").get(timeout=0) == "é\\'"


def test_what_is_known_of_a_result(app: Celery, backend: ResultBackend) -> None:
    child = app.AsyncResult("child")
    request = Context(id="t1", group="g1", parent_id="p1")
    request.children.append(child)
    before = datetime.now(UTC)
    backend.mark_as_done("t1", 5, request=request)
    result = app.AsyncResult("t1")
    assert (result.state, result.info, result.traceback) == ("SUCCESS", 5, None)
    assert result.date_done is not None and result.date_done.tzinfo is not None
    assert abs((result.date_done - before).total_seconds()) < 60
    assert [each.id for each in result.children or []] == ["child"]
    meta = backend.get_task_meta("t1")
    assert (meta["group_id"], meta["parent_id"]) == ("g1", "p1")


def test_a_task_that_nothing_is_known_of(app: Celery) -> None:
    result = app.AsyncResult("unknown")
    assert (result.state, result.result, result.ready()) == ("PENDING", None, False)
    with pytest.raises(ResultTimeout):
        result.get(timeout=0.01)


def test_an_error_comes_back_as_it_was_raised(app: Celery, backend: ResultBackend) -> None:
    backend.mark_as_failure("t1", KeyError("k"), traceback="Traceback\0 \ud800")
    result = app.AsyncResult("t1")
    with pytest.raises(KeyError, match="k"):
        result.get(timeout=0)
    assert (result.state, result.traceback) == ("FAILURE", "Traceback\\0 \\ud800")


def test_an_error_that_is_known_only_here(app: Celery, backend: ResultBackend) -> None:
    class Odd(Exception):
        def __init__(self, one: object, two: object) -> None:
            super().__init__(one, two)

    backend.mark_as_failure("t1", Odd(object(), {1, 2}))
    assert type(app.AsyncResult("t1").result).__name__.endswith("Odd")


@pytest.mark.parametrize("later", [states.FAILURE, states.RETRY, states.REVOKED])
def test_a_success_stays(app: Celery, backend: ResultBackend, later: str) -> None:
    backend.store_result("t1", 1, states.SUCCESS)
    backend.store_result("t1", ValueError("late"), later)
    assert (app.AsyncResult("t1").state, app.AsyncResult("t1").result) == ("SUCCESS", 1)


def test_a_failure_can_be_followed_by_a_success(app: Celery, backend: ResultBackend) -> None:
    backend.mark_as_failure("t1", ValueError("first"))
    backend.mark_as_done("t1", 2)
    assert app.AsyncResult("t1").get(timeout=0) == 2


def test_a_retry_that_is_told_late_replaces_no_failure(app: Celery, backend: ResultBackend) -> None:
    """The run that it asked for has failed by then, or its job was given up."""
    backend.mark_as_failure("t1", ValueError("last"))
    backend.mark_as_retry("t1", ValueError("first"))
    with pytest.raises(ValueError, match="last"):
        app.AsyncResult("t1").get(timeout=0)


def test_states_on_the_way(app: Celery, backend: ResultBackend) -> None:
    backend.mark_as_started("t1", pid=5)
    result = app.AsyncResult("t1")
    assert (result.state, result.info) == ("STARTED", {"pid": 5})
    backend.store_result("t1", {"done": 3}, "PROGRESS")
    assert (result.state, result.info) == ("PROGRESS", {"done": 3})
    assert result.date_done is None


def test_a_value_that_cannot_be_encoded_leaves_nothing(backend: ResultBackend, sql: Sql) -> None:
    with pytest.raises(EncodeError):
        backend.mark_as_done("t1", object())
    assert sql("SELECT count(*) FROM pgbeat.results") == [(0,)]


def test_pickle_is_read_only_where_it_is_accepted(make_app: Callable[..., Celery]) -> None:
    pickles = make_app(result_serializer="pickle", result_accept_content=["pickle", "json"])
    backend_of(pickles).mark_as_done("t1", {1, 2})
    assert pickles.AsyncResult("t1").get(timeout=0) == {1, 2}
    with pytest.raises(ContentDisallowed):
        make_app().AsyncResult("t1").get(timeout=0)
    # One that writes pickle reads what another wrote as JSON.
    backend_of(make_app()).mark_as_done("t2", [1])
    assert pickles.AsyncResult("t2").get(timeout=0) == [1]


def test_extended_results(make_app: Callable[..., Celery], sql: Sql) -> None:
    app = make_app(result_extended=True)
    request = Context(
        id="t1",
        task="shop.sell",
        args=(1, "\0"),
        kwargs={"n": 2},
        hostname="w1@h",
        retries=3,
        delivery_info={"routing_key": "q1"},
        stamps={"s": ["x"]},
        stamped_headers=["s"],
    )
    backend_of(app).mark_as_done("t1", 1, request=request)
    result = app.AsyncResult("t1")
    assert (result.name, result.args, result.kwargs) == ("shop.sell", [1, "\0"], {"n": 2})
    assert (result.worker, result.retries, result.queue) == ("w1@h", 3, "q1")
    assert backend_of(app).get_task_meta("t1")["s"] == ["x"]
    assert sql("SELECT task, worker, queue, retries FROM pgbeat.results") == [
        ("shop.sell", "w1@h", "q1", 3)
    ]


def test_forgetting(app: Celery, backend: ResultBackend) -> None:
    backend.mark_as_done("t1", 1)
    app.AsyncResult("t1").forget()
    assert app.AsyncResult("t1").state == "PENDING"


def test_groups_are_saved_and_restored(app: Celery) -> None:
    inner = app.GroupResult("inner", [app.AsyncResult("t2")])
    group = app.GroupResult("g1", [app.AsyncResult("t1"), inner])
    group.save()
    restored = GroupResult.restore("g1", app=app)
    assert restored == group
    assert isinstance(restored.results[1], GroupResult)
    restored.delete()
    assert GroupResult.restore("g1", app=app) is None


def test_a_task_that_the_worker_does_not_know(backend: ResultBackend) -> None:
    """Celery gives the backend no more of its request than this."""
    known = dict.fromkeys(("root_id", "correlation_id", "reply_to", "errbacks"))
    backend.mark_as_failure("t1", KeyError("t"), request=Bunch(name="t", chord=None, **known))
    assert backend.get_state("t1") == "FAILURE"


def test_results_expire(make_app: Callable[..., Celery], sql: Sql) -> None:
    """The task that Celery's own entry sends deletes them."""
    app = make_app(result_expires=3600, result_failure_expires=7200)
    backend = backend_of(app)
    backend.mark_as_done("done", 1)
    backend.mark_as_failure("failed", ValueError())
    app.GroupResult("g1", [app.AsyncResult("done")]).save()
    backend.set_chord_size("c1", 3)
    hours = (
        "SELECT task_id, round(extract(epoch FROM expires_at - now()) / 3600) FROM pgbeat.results"
    )
    assert dict(sql(hours)) == {"done": 1, "failed": 2}

    for table in ("results", "result_groups", "chords"):
        sql(f"UPDATE pgbeat.{table} SET expires_at = now() - interval '1 s'")
    assert app.AsyncResult("done").state == "PENDING"
    assert GroupResult.restore("g1", app=app) is None
    backend.mark_as_done("kept", 1)
    app.tasks["celery.backend_cleanup"]()
    assert sql("SELECT task_id FROM pgbeat.results") == [("kept",)]
    for table in ("result_groups", "chords"):
        assert sql(f"SELECT count(*) FROM pgbeat.{table}") == [(0,)]


@pytest.mark.parametrize("expires", [None, 0])
def test_results_that_never_expire(make_app: Callable[..., Celery], sql: Sql, expires: Any) -> None:
    backend = backend_of(make_app(result_expires=expires))
    backend.mark_as_done("t1", 1)
    backend.cleanup()
    assert sql("SELECT expires_at FROM pgbeat.results") == [(None,)]


def test_an_id_with_nul_is_no_other_task(app: Celery, backend: ResultBackend) -> None:
    backend.mark_as_done("t1", 1)
    with pytest.raises(ValueError, match="must not contain NUL"):
        app.AsyncResult("t1\0x").state  # noqa: B018
    with pytest.raises(ValueError, match="must not contain NUL"):
        backend.mark_as_done("t1\0x", 2)
    with pytest.raises(ValueError, match="must not contain NUL"):  # nor another state
        backend.store_result("t2", None, "SUCCESS\0x")
    assert app.AsyncResult("t1").get(timeout=0) == 1
    assert app.AsyncResult("t2").state == "PENDING"


def test_prefixes_keep_apps_apart(make_app: Callable[..., Celery]) -> None:
    one = make_app(result_backend_transport_options={"global_keyprefix": "one:"})
    other = make_app(result_backend_transport_options={"global_keyprefix": "other:"})
    backend_of(one).mark_as_done("daily", 1)
    assert one.AsyncResult("daily").get(timeout=0) == 1
    assert other.AsyncResult("daily").state == "PENDING"


@contextmanager
def awaited(app: Celery, sql: Sql, task_id: str, **options: Any) -> Iterator[list[Any]]:
    """A thread waits for a result within the block; has it afterwards."""
    found: list[Any] = []
    result = app.AsyncResult(task_id)
    thread = threading.Thread(target=lambda: found.append(result.get(timeout=20, **options)))
    thread.start()
    until(lambda: sql("SELECT 1 FROM pgbeat.result_waits"))
    yield found
    thread.join()


def test_waiting(app: Celery, backend: ResultBackend, sql: Sql) -> None:
    """Who waits is told as soon as the result is there, by a thread of its own."""
    with awaited(app, sql, "t1") as found:
        backend.mark_as_done("t1", "here")
    assert found == ["here"]
    assert sql("SELECT count(*) FROM pgbeat.result_waits") == [(0,)]


def test_what_is_there_takes_no_wait(
    app: Celery, backend: ResultBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 5.6, Celery itself waits for a second before it looks."""
    waits: list[Any] = []
    monkeypatch.setattr(
        backend.result_consumer.drainer, "wait_for", lambda *args, **kwargs: waits.append(args)
    )
    backend.mark_as_done("t1", 1)
    backend.mark_as_failure("t2", ValueError("no"))
    assert app.AsyncResult("t1").get() == 1
    with pytest.raises(ValueError, match="no"):
        app.AsyncResult("t2").get()
    backend.mark_as_done("t3", 3)
    assert ResultSet([app.AsyncResult("t3"), app.AsyncResult("t1")]).join_native() == [3, 1]
    assert waits == []


def test_waiting_for_many_is_a_few_statements(
    app: Celery, backend: ResultBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"t{n}" for n in range(500)]
    for task_id in ids:
        backend.mark_as_done(task_id, task_id)
    sent = []
    from pgbeat.database.prepared import PreparedConnection

    run = PreparedConnection.run

    def count(self: Any, statement: Any, *parameters: Any) -> Any:
        sent.append(statement.label)
        return run(self, statement, *parameters)

    monkeypatch.setattr(PreparedConnection, "run", count)
    group = app.GroupResult("g1", [app.AsyncResult(task_id) for task_id in ids])
    assert group.get(timeout=20) == ids
    assert len(sent) < 6


def test_a_lost_notification_only_delays(app: Celery, backend: ResultBackend, sql: Sql) -> None:
    with awaited(app, sql, "t1") as found:
        sql("DELETE FROM pgbeat.result_waits")
        backend.mark_as_done("t1", 1)
    assert found == [1]


def test_callbacks_of_states_on_the_way(app: Celery, backend: ResultBackend, sql: Sql) -> None:
    seen: list[str] = []
    with awaited(app, sql, "t1", on_message=lambda meta: seen.append(meta["status"])):
        backend.store_result("t1", 1, "PROGRESS")
        until(lambda: seen)
        backend.mark_as_done("t1", 2)
    assert list(dict.fromkeys(seen)) == ["PROGRESS", "SUCCESS"]  # a state may be read twice


def test_a_callback_is_called_once(app: Celery, backend: ResultBackend) -> None:
    """Also one that is added to a result that is known."""
    seen: list[str] = []
    result, other = app.AsyncResult("t1"), app.AsyncResult("t2")
    result.then(lambda _: seen.append("early"))
    backend.mark_as_done("t1", 1)
    assert result.get(timeout=20) == 1
    result.then(lambda _: seen.append("late"))
    backend.mark_as_done("t2", 2)
    assert other.get(timeout=20) == 2
    assert seen == ["early", "late"]


def test_a_session_that_is_cut_is_replaced(app: Celery, backend: ResultBackend, sql: Sql) -> None:
    backend.mark_as_done("t1", 1)
    assert end_sessions(sql, "pgbeat results%")
    backend.mark_as_done("t2", 2)
    with awaited(app, sql, "t3") as found:
        assert end_sessions(sql, "pgbeat results%")
        backend.mark_as_done("t3", 3)
    assert found == [3]
    assert app.AsyncResult("t2").get(timeout=0) == 2


def test_a_transaction_that_is_cut_is_repeated(make_app: Callable[..., Celery], sql: Sql) -> None:
    """As a whole, though Celery would repeat its statement, in the session that was cut."""
    sql("CREATE SEQUENCE cuts")
    sql(
        "CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF nextval('cuts') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; "
        "RETURN NEW; END $$"
    )
    sql("CREATE TRIGGER cut BEFORE INSERT ON pgbeat.results FOR EACH ROW EXECUTE FUNCTION cut()")
    app = make_app(result_backend_always_retry=True, result_backend_max_retries=3)
    request = Context(id="t1", group="c1", group_index=0, chord=app.signature("b"), task="m")
    backend_of(app).mark_as_done("t1", 1, request)
    assert app.AsyncResult("t1").get(timeout=0) == 1
    assert sql("SELECT done FROM pgbeat.chords") == [(1,)]


def test_without_the_schema(empty_database: str) -> None:
    from pgbeat.errors import SchemaError

    url = transport_url(empty_database)
    app = Celery("results", broker=url, backend=url, set_as_current=False)
    with pytest.raises(SchemaError, match="pgbeat migrate"):
        backend_of(app).mark_as_done("t1", 1)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("pgbeat+postgresql://me:secret@h/app", "pgbeat+postgresql://me:***@h/app"),
        ("pgbeat+postgresql://h/app?password=secret", "pgbeat+postgresql://h/app?password=***"),
    ],
)
def test_the_password_is_not_shown(url: str, shown: str) -> None:
    app = Celery("results", broker=url, backend=url, set_as_current=False)
    assert unquote(app.backend.as_uri()) == shown
    assert "secret" in app.backend.as_uri(include_password=True)


def test_the_brokers_database_by_name(make_app: Callable[..., Celery]) -> None:
    login = {"connect_args": {"sslmode": "disable"}}
    app = make_app(result_backend="pgbeat://", broker_transport_options=login)
    backend_of(app).mark_as_done("t1", 1)
    assert make_app().AsyncResult("t1").get(timeout=0) == 1
    assert backend_of(app).database.query["sslmode"] == "disable"
