"""Results by Celery's keys: Airflow reads those of a key-value backend many at a time."""

import pytest
from celery import Celery
from celery.app.task import Context
from celery.backends.base import BaseKeyValueStoreBackend

from pgbeat.results.backend import ResultBackend
from tests.support.transport_workers import transport_url

#: Those that a class for key-value stores has of its own, and that work by `get`.
BY_GET = {"task_result_exists"}


@pytest.fixture(params=["", "shop"])
def backend(database: str, request: pytest.FixtureRequest) -> ResultBackend:
    """A backend, without a prefix of its keys and with one."""
    url = transport_url(database)
    app = Celery("results", broker=url, backend=url, set_as_current=False)
    app.conf.result_backend_transport_options = {"global_keyprefix": request.param}
    backend = app.backend
    assert isinstance(backend, ResultBackend)
    return backend


def test_several_are_read_at_once(backend: ResultBackend) -> None:
    assert isinstance(backend, BaseKeyValueStoreBackend)  # which Airflow asks
    backend.store_result("t1", None, "STARTED")
    backend.mark_as_done("t2", 2)
    backend.mark_as_failure("t3", KeyError("x"))
    values = backend.mget([backend.get_key_for_task(f"t{number}") for number in (3, 4, 1, 2)])
    assert values[1] is None
    metas = [backend.decode_result(value) for value in values if value]
    assert [(meta["task_id"], meta["status"]) for meta in metas] == [
        ("t3", "FAILURE"),
        ("t1", "STARTED"),
        ("t2", "SUCCESS"),
    ]
    assert [repr(meta["result"]) for meta in metas] == ["KeyError('x')", "None", "2"]


def test_what_is_got_can_be_set(backend: ResultBackend) -> None:
    children = [backend.app.AsyncResult("child")]
    request = Context(id="t1", group="g1", parent_id="p1", children=children)
    backend.mark_as_done("t1", {"a": [1]}, request)
    backend.mark_as_failure("t2", KeyError("x"), "Traceback …", Context(id="t2"))
    for task_id in ("t1", "t2"):
        value = backend.get(backend.get_key_for_task(task_id))
        backend.set(backend.get_key_for_task("copy"), value)
        one, copy = backend.get_task_meta(task_id), backend.get_task_meta("copy")
        other = {"task_id": "copy", "date_done": copy["date_done"], "result": copy["result"]}
        assert copy == one | other
        assert repr(copy["result"]) == repr(one["result"])
        backend.delete(backend.get_key_for_task("copy"))
        assert backend.get(backend.get_key_for_task("copy")) is None


@pytest.mark.parametrize("key", ["get_key_for_group", "get_key_for_chord"])
def test_other_keys_are_refused(backend: ResultBackend, key: str) -> None:
    with pytest.raises(ValueError, match="celery-task-meta-"):
        backend.get(getattr(backend, key)("t1"))


def test_nothing_else_is_a_key_value_stores() -> None:
    """Celery's class for key-value stores replaces methods of a backend: ours come first."""
    ours = {
        name
        for base in ResultBackend.__mro__
        if base.__module__.startswith("pgbeat")
        for name in vars(base)
    }
    base = BaseKeyValueStoreBackend.__mro__[1]
    replaced = {name for name in vars(BaseKeyValueStoreBackend) if hasattr(base, name)}
    assert {name for name in replaced if not name.startswith("__")} - ours - BY_GET == set()
