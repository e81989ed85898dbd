"""Celery's result backend on Postgres."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from functools import cached_property, partial
from time import monotonic, sleep
from typing import Any

from celery import states
from celery.backends.asynchronous import AsyncBackendMixin
from celery.exceptions import TimeoutError as ResultTimeout
from celery.result import result_from_tuple
from kombu.serialization import loads
from sqlalchemy.engine import URL

from pgbeat.broker.messages import job_claim, passed_on
from pgbeat.broker.transport import held_messages
from pgbeat.config import broker_database, postgres_url, redacted, with_login
from pgbeat.database import connections
from pgbeat.results import answers, chords, errbacks, expiry, statements
from pgbeat.results.by_key import ByKey
from pgbeat.results.ending import ClaimLost, abandon_current, ending_of
from pgbeat.results.rows import (
    COLUMNS,
    Encoded,
    StoredResult,
    as_json,
    as_number,
    as_text,
    bytea,
    encoded,
    stored_results,
)
from pgbeat.results.store import Joined, Store, StorePlace
from pgbeat.results.values import decompressed
from pgbeat.results.waiting import ResultConsumer, Waits

#: Schemes that stand for the broker's database.
_BROKERS = {None, "", "pgbeat", "pgbeat://"}


class ResultBackend(ByKey, AsyncBackendMixin):  # type: ignore[misc,unused-ignore]
    """Stores results in `pgbeat.results`; `result_backend = "pgbeat+postgresql://…"`."""

    supports_native_join = True
    supports_result_compression = True
    supports_failure_expires = True
    mark_as_revoked = answers.mark_as_revoked

    def __init__(self, app: Any, url: str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("expires_type", float)
        super().__init__(app=app, url=url, **kwargs)
        conf = app.conf
        options: Mapping[str, Any] = conf.get("result_backend_transport_options") or {}
        self._prefix = str(options.get("global_keyprefix") or "")
        is_brokers = url in _BROKERS
        dsn = with_login(broker_database(conf), conf) if is_brokers else postgres_url(str(url))
        self._place = StorePlace(dsn, dict(options.get("connect_args") or {}))
        self.failure_expires = self._expires("result_failure_expires")
        self.chord_lifetime = self._expires("result_chord_expires")
        self.result_consumer = ResultConsumer(
            self, app, self.accept, self._pending_results, self._pending_messages
        )

    def _expires(self, setting: str) -> Any:
        value = self.app.conf.get(setting)
        return self.expires if value is None else self.prepare_expires(value, float)

    @property
    def database(self) -> URL:
        """The database's DSN."""
        return self._place.url

    @property
    def store(self) -> Store:
        """This process's connection."""
        return self._place.store()

    @property
    def waits(self) -> Waits:
        """This process's waits for results."""
        store = self.store
        with store.lock:
            if store.waits is None:
                store.waits = Waits(store)
            return store.waits

    def as_uri(self, include_password: bool = False) -> str:
        """Returns the URL, its password hidden unless asked for."""
        url = self.database.set(drivername="postgresql")
        return "pgbeat+" + (
            url.render_as_string(hide_password=False) if include_password else redacted(url)
        )

    def __reduce__(self, args: Any = (), kwargs: Any = None) -> Any:
        return super().__reduce__(
            args, {**(kwargs or {}), "url": self.url, "expires": self.expires}
        )

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """Returns whether the connection was lost, and no transaction with it.

        That is repeated as a whole.
        """
        return self.store.joined is None and connections.is_lost(exc)

    # ----- encoding

    def key(self, task_id: Any) -> str:
        """Returns a task's or group's id as the tables have it.

        Raises `ValueError` for one with NUL, at which the driver would cut it off.
        """
        key = f"{self._prefix}{task_id}"
        if "\0" in key:
            raise ValueError(f"an id must not contain NUL, got {task_id!r}")
        return key

    def encode_value(self, value: Any) -> tuple[bytes | None, bytes, bytes]:
        """Returns a value's body, content type and content encoding, as parameters."""
        body = self.encode(value)
        written = body.encode(errors="surrogatepass") if isinstance(body, str) else bytes(body)
        return bytea(written), self.content_type.encode(), self.content_encoding.encode()

    def decode_value(self, value: Encoded) -> Any:
        """Returns a value.

        Raises kombu's `ContentDisallowed` for a content type that `result_accept_content` lacks.
        """
        if value.body is None:
            return None
        return loads(
            decompressed(value.body),
            content_type=value.content_type,
            content_encoding=value.content_encoding,
            accept=self.accept,
        )

    def decoded_meta(self, row: StoredResult) -> dict[str, Any]:
        """Returns what was stored of a task, an error as the dict that stands for it."""
        return row.as_meta(self._prefix, self.decode_value)

    def meta_of(self, row: StoredResult) -> dict[str, Any]:
        """Returns what Celery knows of a task."""
        meta: dict[str, Any] = self.meta_from_decoded(self.decoded_meta(row))
        return meta

    # ----- storing

    def mark_as_done(
        self,
        task_id: str,
        result: Any,
        request: Any = None,
        store_result: bool = True,
        state: str = states.SUCCESS,
    ) -> None:
        """Stores a result; a chord's member returns its part in the same transaction."""
        mark = partial(super().mark_as_done, task_id, result, request, store_result, state)
        ending = ending_of(request)
        if ending is not None and ending.done(mark, result):
            return
        if request and request.chord:
            self.store.atomically(lambda working: mark())
        else:
            mark()

    def mark_as_failure(
        self,
        task_id: str,
        exc: Any,
        traceback: Any = None,
        request: Any = None,
        store_result: bool = True,
        call_errbacks: bool = True,
        state: str = states.FAILURE,
    ) -> None:
        """Stores a failure, with its part of a chord and that one's errbacks, or the chain's rest.

        In one transaction: nothing looks later at a task whose result says that it has ended.
        Nothing is stored of a job's run that has lost its message, which is delivered again.
        """
        if chain := getattr(request, "chain", None):
            request = copy(request)
            request.chain = chords.with_results(chain, self.app)
        options = task_id, exc, traceback, request, store_result, call_errbacks, state
        mark = partial(super().mark_as_failure, *options)
        claim = job_claim(request) if state == states.FAILURE else {}

        def mark_all(working: Joined) -> None:
            with chords.published_in(self, working.connection) as block:
                if block is not None and passed_on(working.connection, claim):
                    raise ClaimLost
                mark()

        ending = ending_of(request)
        if ending is not None and ending.failed(mark, exc, traceback):
            return
        if claim or (request and (request.chord or getattr(request, "chain", None))):
            with suppress(ClaimLost):
                self.store.atomically(mark_all)
        else:
            mark()

    def _call_task_errbacks(self, request: Any, exc: Any, traceback: Any) -> None:
        """Calls errbacks; in a transaction those that run in this process wait for the commit."""
        call = super()._call_task_errbacks
        if self.store.joined is None:
            call(request, exc, traceback)
            return
        published, called = errbacks.separated(self.app, request)
        if published.errbacks:
            call(published, exc, traceback)
        if called.errbacks:
            self.store.after_commit(partial(call, called, exc, traceback))

    def _store_result(
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: Any = None,
        request: Any = None,
        **kwargs: Any,
    ) -> Any:
        children, group_id, parent_id, extended = self._context(result, state, traceback, request)
        expires = self.failure_expires if state == states.FAILURE else self.expires
        ending = ending_of(request)
        is_durable = ending is not None and ending.is_durable
        parameters = (
            self.key(task_id).encode(),
            state.encode(),
            *self.encode_value(result),
            as_text(traceback),
            None if children is None else as_json(children),
            as_text(group_id),
            as_text(parent_id),
            *extended,
            as_number(expires or None),
            None if is_durable else b"off",
        )
        if ending is None or not ending.store(parameters):
            is_ready = state in states.READY_STATES
            self.store.run(statements.STORE if is_ready else statements.STORE_STATE, *parameters)
        return result

    def _context(
        self, result: Any, state: str, traceback: Any, request: Any
    ) -> tuple[Any, Any, Any, list[bytes | None]]:
        """Returns a result's children, group and parent, and what extends it.

        That is task, worker, queue, retries and request, or `None` for each.
        """
        if not self._is_extended or not request:
            children = self.current_task_children(request)
            group_id = getattr(request, "group", None) or None
            return children, group_id, getattr(request, "parent_id", None) or None, [None] * 5
        meta = self._get_result_meta(result, state, traceback, request, format_date=False)
        columns = [as_text(meta[name]) for name in ("name", "worker", "queue", "retries")]
        body, _, _ = self.encode_value({k: v for k, v in meta.items() if k not in COLUMNS})
        return meta["children"], meta.get("group_id"), meta.get("parent_id"), [*columns, body]

    @cached_property
    def _is_extended(self) -> bool:
        return bool(self.app.conf.find_value_for_key("extended", "result"))

    def _forget(self, task_id: str) -> None:
        self.store.run(statements.FORGET, self.key(task_id).encode())
        self.result_consumer.cancel_for(task_id)

    def process_cleanup(self) -> None:
        """Rolls back what a task that is over left open; Celery calls it after each task."""
        abandon_current()

    # ----- reading

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        if not task_id:
            raise ValueError(f"task_id must not be empty, got {task_id!r}")
        rows = stored_results(self.store.run(statements.READ, self.key(task_id).encode()))
        return self.meta_of(rows[0]) if rows else {"status": states.PENDING, "result": None}

    def get_many(
        self,
        task_ids: Iterable[str],
        timeout: float | None = None,
        interval: float | None = 0.5,
        no_ack: bool = True,
        on_message: Callable[[dict[str, Any]], None] | None = None,
        on_interval: Callable[[], None] | None = None,
        max_iterations: int | None = None,
        READY_STATES: frozenset[str] = states.READY_STATES,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields ids and meta-data of tasks as they become ready, all read by one statement.

        Raises:
            celery.exceptions.TimeoutError: Some are not ready after `timeout` seconds.
        """
        left = {str(task_id) for task_id in task_ids}
        for task_id in list(left):
            cached = self._cache.get(task_id)
            if cached is not None and cached["status"] in READY_STATES:
                left.discard(task_id)
                yield task_id, cached
        started, rounds = monotonic(), 0
        ready = as_json(sorted(READY_STATES))
        while left:
            keys = as_json([self.key(task_id) for task_id in left])
            for row in stored_results(self.store.run(statements.READ_READY, keys, ready)):
                meta = self.meta_of(row)
                task_id = meta["task_id"]
                self._cache[task_id] = meta
                left.discard(task_id)
                if on_message is not None:
                    on_message(meta)
                yield task_id, meta
            rounds += 1
            passed = monotonic() - started
            if not left or (max_iterations and rounds >= max_iterations):
                return
            if timeout is not None and passed >= timeout:
                raise ResultTimeout(f"Operation timed out ({timeout})")
            if on_interval is not None:
                on_interval()
            pause = 0.5 if interval is None else interval
            sleep(pause if timeout is None else min(pause, timeout - passed))

    def add_pending_result(
        self, result: Any, weak: bool = False, start_drainer: bool = True
    ) -> Any:
        """Waits for a result, unless it is known: its callbacks would be called again."""
        if result.on_ready.ready:
            return result
        return super().add_pending_result(result, weak=weak, start_drainer=start_drainer)

    # ----- groups

    def _save_group(self, group_id: str, result: Any) -> Any:
        self.store.run(
            statements.SAVE_GROUP,
            self.key(group_id).encode(),
            *self.encode_value({"result": result.as_tuple()}),
            as_number(self.expires or None),
        )
        return result

    def _restore_group(self, group_id: str) -> dict[str, Any] | None:
        rows = self.store.run(statements.RESTORE_GROUP, self.key(group_id).encode())
        if not rows.ntuples:
            return None
        meta: dict[str, Any] = self.decode_value(encoded(rows, 0, 0))
        meta["result"] = result_from_tuple(meta["result"], self.app)
        return meta

    def _delete_group(self, group_id: str) -> None:
        self.store.run(statements.DELETE_GROUP, self.key(group_id).encode())

    # ----- chords

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        """Prepares a chord: keeps the structure of a header that is not flat."""
        prepare = partial(chords.prepare, self, header_result_args)
        if not held_messages.hold_action(prepare):
            prepare()

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Stores a chord's number of parts, with the parts if these are held back."""
        set_size = partial(
            self.store.atomically,
            lambda working: chords.set_size(self, working.connection, group_id, chord_size),
        )
        if not held_messages.hold_action(set_size):
            set_size()

    def add_to_chord(self, chord_id: str, result: Any) -> None:
        """Adds a part to a chord that has begun."""
        lifetime = as_number(self.chord_lifetime or None)
        self.store.run_once(statements.ADD_TO_CHORD, self.key(chord_id).encode(), lifetime)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Returns a member's part; the last one ends the chord."""
        if not (request.id and request.group):
            return
        ending = ending_of(request)
        is_durable = ending is not None and ending.is_durable
        self.store.atomically(
            lambda working: chords.return_part(
                self, working.connection, request, state, result, is_durable=is_durable
            )
        )

    def cleanup(self) -> None:
        """Deletes what has expired, in batches."""
        expiry.delete_all_expired(self.store)
