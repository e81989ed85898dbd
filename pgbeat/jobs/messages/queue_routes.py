"""Finds the queue to which the app routes a task's messages, if its job names none."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pgbeat.jobs.rows.filters import Filter

if TYPE_CHECKING:
    from celery import Celery

#: Returns the queue of a task, or `None` if a router of the app's own raises.
Route = Callable[[str], str | None]


def route_of(app: "Celery") -> Route:
    """Returns the function that says where the app's messages of a task go by default."""
    known: dict[str, str | None] = {}

    def route(task: str) -> str | None:
        if task not in known:
            try:
                known[task] = app.amqp.router.route({}, task)["queue"].name
            except Exception:  # a router of the app's own raised
                known[task] = None
        return known[task]

    return route


def routed(which: Filter, app: "Celery") -> Filter:
    """Returns a filter that finds jobs of a queue also if they name none, but are routed to it.

    Of tasks that the app doesn't know, it finds those that go to the default queue.
    """
    if which.queue is None:
        return which
    route = route_of(app)
    if route("") == which.queue:
        elsewhere = tuple(sorted(task for task in app.tasks if route(task) != which.queue))
        return which._replace(routed_elsewhere=elsewhere)
    here = tuple(sorted(task for task in app.tasks if route(task) == which.queue))
    return which._replace(routed_here=here)
