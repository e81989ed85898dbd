"""Checks that a worker that starts has a broker and can store results."""

from celery import Celery
from sqlalchemy.exc import DBAPIError

from pgbeat.broker.transport.options import Options
from pgbeat.config import broker_database, check_broker_url, delays_in_table, place, same_database
from pgbeat.database import connections
from pgbeat.errors import ConfigError, SchemaError
from pgbeat.results import chords
from pgbeat.results.store import Store


def require_broker(app: Celery) -> None:
    """Ends a worker whose broker or result backend is set up wrongly, with one plain line.

    Celery would show the transport's error as a traceback.
    """
    try:
        check_broker_url(app.conf)
        if delays_in_table(app.conf):
            Options.read(app.conf.broker_transport_options or {})
    except ConfigError as error:
        raise SystemExit(f"pgbeat: {error}") from None
    _require_results(app)


def _require_results(app: Celery) -> None:
    """Ends a worker that could not store a result, with one plain line.

    If the results are in the broker's database, connecting to the broker reports what is wrong with
    it, and the worker waits. A server that can't be reached may be there at the first result.
    """
    if not _is_own_backend(app):
        return
    try:
        store: Store = app.backend.store
        if delays_in_table(app.conf) and same_database(broker_database(app.conf), store.url):
            return
        store.check_schema()
    except ConfigError as error:
        raise SystemExit(f"pgbeat: {error}") from None
    except SchemaError as error:
        raise SystemExit(f"pgbeat: {error} (results in {place(store.url)})") from None
    except DBAPIError as error:
        if not connections.is_lost(error):
            line = connections.first_line(error)
            raise SystemExit(f"pgbeat: can't store results in {place(store.url)}: {line}") from None


def warn_of_other_database(app: Celery) -> None:
    """Logs, before a worker forks, that its chords end in another database than its broker's."""
    if not _is_own_backend(app):
        return
    store: Store = app.backend.store
    if delays_in_table(app.conf) and same_database(broker_database(app.conf), store.url):
        return
    try:
        with store.work() as working, connections.transaction(working.connection):
            chords.published_in(app.backend, working.connection)
    except DBAPIError as error:
        if not connections.is_lost(error):
            raise
    finally:
        store.close()


def _is_own_backend(app: Celery) -> bool:
    """Returns whether the app's settings name pgbeat's result backend."""
    backend = app.conf.result_backend
    return isinstance(backend, str) and backend.replace(":", "+").split("+")[0] == "pgbeat"
