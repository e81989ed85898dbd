"""Keeps tasks with `pin` on the version of the app that sends them, by a queue of that version.

The queue `celery.pinned.2f1c9d0` takes those that version 2f1c9d0 sends to `celery`; its workers
that consume from `celery` consume from it, too.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pgbeat.config import settings_of
from pgbeat.errors import InvalidJob
from pgbeat.jobs.policy import task_policies

if TYPE_CHECKING:
    from celery import Celery

#: Stands between the names of the queue and the version.
SEPARATOR = ".pinned."
#: Seconds after which such a queue is deleted that no worker has consumed from meanwhile.
_EXPIRES = 30 * 86_400.0


def send_options(
    app: "Celery", name: str, call: tuple[Any, Any], options: Mapping[str, Any]
) -> Any:
    """Returns the options by which a task is sent, with the version's queue if the task is pinned.

    `call` is args and kwargs, for the app's routers. Raises `InvalidJob` if the options name an
    exchange or a routing key.
    """
    version = settings_of(app).version
    if not (version and task_policies.is_pinned(app, name)):
        return options
    for field in "exchange", "routing_key":
        if options.get(field):
            message = f"task {name!r} is pinned to its version by a queue; give queue, not {field}"
            raise InvalidJob.of(f"options.{field}", "conflict", message)
    base = app.amqp.router.route({**options}, name, *call)["queue"]
    return {**options, "queue": _pinned(app, base, version).name}


def consume(app: "Celery", version: str) -> None:
    """Makes a worker consume from its version's queues, if the app has tasks with `pin`."""
    if version and any(task_policies.is_pinned(app, name) for name in tuple(app.tasks)):
        for queue in tuple(app.amqp.queues.consume_from.values()):
            # Not to those of one worker, as for `worker_direct` and broadcasts.
            if not queue.auto_delete:
                app.amqp.queues.select_add(_pinned(app, queue, version))


def _pinned(app: "Celery", base: Any, version: str) -> Any:
    """Returns a queue's counterpart for a version, which the app knows afterwards."""
    if SEPARATOR in base.name:
        return base
    name = f"{base.name}{SEPARATOR}{version}"
    if name in app.amqp.queues:
        return app.amqp.queues[name]
    # A queue as a whole: of options by name, kombu 5.5 takes no priorities and no expiry.
    queue = type(base)(
        name,
        exchange=type(base.exchange)(name, "direct", durable=base.durable),
        routing_key=name,
        durable=base.durable,
        max_priority=base.max_priority,
        message_ttl=base.message_ttl,
        queue_arguments=base.queue_arguments,
        expires=_EXPIRES,
    )
    return app.amqp.queues.add(queue)
