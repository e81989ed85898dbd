"""Lets an app's settings change within a process: Celery keeps connections as long as the app."""

from celery import Celery

from pgbeat.results.backend import ResultBackend


def disconnect(app: Celery) -> None:
    """Closes an app's connections to its broker, so that the next one follows its settings."""
    app.pool.force_close_all(close_pool=False)
    app._pool = app.amqp._producer_pool = None


def forget_backend(app: Celery) -> None:
    """Has an app make its result backend anew, as its settings say."""
    # The backend may be another one than pgbeat's.
    if isinstance(app.backend, ResultBackend):
        app.backend.store.close()
    # Celery keeps one in each thread.
    app._backend_cache = None
    vars(app._local).pop("backend", None)
