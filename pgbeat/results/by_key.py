"""Results as the values of keys, as Celery's key-value backends have them."""

from collections.abc import Iterable
from typing import Any

from celery.app.task import Context
from celery.backends import base
from celery.result import result_from_tuple
from kombu.utils.encoding import bytes_to_str

from pgbeat.results import statements
from pgbeat.results.rows import as_json, stored_results


class ByKey(base.BaseKeyValueStoreBackend):  # type: ignore[misc,unused-ignore]
    """Gets and sets results by the keys of their tasks, such as `celery-task-meta-ID`.

    Who looks up many states asks for this class, and then for all of them at once. For other
    backends Airflow's scheduler starts a pool of processes each time.
    """

    def _task_of(self, key: bytes | str) -> str:
        name, prefix = str(bytes_to_str(key)), str(bytes_to_str(self.task_keyprefix))
        if not name.startswith(prefix):
            raise ValueError(f"a key must be a task's, {prefix}ID, got {name!r}")
        return name.removeprefix(prefix)

    def mget(self, keys: Iterable[bytes | str]) -> list[Any]:
        """Returns the encoded meta-data of tasks, all read by one statement; `None` for others."""
        wanted = [self.key(self._task_of(key)) for key in keys]
        rows = stored_results(self.store.run(statements.READ_MANY, as_json(wanted)))
        values = {row.task_id: self.encode(self.decoded_meta(row)) for row in rows}
        return [values.get(key) for key in wanted]

    def get(self, key: bytes | str) -> Any:
        """Returns the encoded meta-data of a task; `None` if there are none."""
        (value,) = self.mget([key])
        return value

    def set(self, key: bytes | str, value: Any) -> None:
        """Stores encoded meta-data as a task's, done now, without what `result_extended` adds."""
        meta = self.decode(value)
        children = [result_from_tuple(child, self.app) for child in meta.get("children") or ()]
        group, parent = meta.get("group_id"), meta.get("parent_id")
        request = Context(children=children, group=group, parent_id=parent)
        task_id, traceback = self._task_of(key), meta.get("traceback")
        self._store_result(task_id, meta["result"], meta["status"], traceback, request)

    def delete(self, key: bytes | str) -> None:
        """Deletes a task's result."""
        self._forget(self._task_of(key))
