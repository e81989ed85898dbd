"""Sends plain tasks by templates: `delay` and `apply_async` in a fraction of Celery's time.

An app that publishes over pgbeat's transport gets a `TemplateSender` as its `send_task`, which
`Task.apply_async` calls. Celery's own method sends the first message of a task with given options,
and each one for which a template might not give the same bytes.
"""

import json
import logging
import os
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import uuid4

from celery import Celery
from celery._state import _get_active_apps
from kombu import Connection as BrokerConnection
from kombu.exceptions import EncodeError, OperationalError
from kombu.messaging import Producer

from pgbeat.broker import ports
from pgbeat.broker.messages import JOB_HEADER, NEW_JOB_HEADER, NewJob
from pgbeat.broker.payloads import JOB
from pgbeat.broker.publishing.carried import carried_headers, with_headers
from pgbeat.broker.publishing.first_send import FirstSend, sender_of
from pgbeat.broker.publishing.message_templates import (
    MessageTemplate,
    TaskMessage,
    is_observed,
    sends_plainly,
)
from pgbeat.broker.publishing.publisher import HeldPublishes
from pgbeat.broker.transport import held_messages, transaction_blocks
from pgbeat.broker.transport.broker import Broker
from pgbeat.broker.transport.channel import Channel
from pgbeat.broker.transport.outbox import OutboxConnection
from pgbeat.broker.transport.transport import Transport, is_outage
from pgbeat.config import brokers, delays_in_table
from pgbeat.config.task_options import has_policies, own_policy
from pgbeat.database import server_errors
from pgbeat.database.connections import first_line

logger = logging.getLogger("pgbeat.publishing")

#: Options that each message has for itself.
_OWN = {"task_id", "result_cls", "task_type", "add_to_parent"}
#: Options that all messages of a template share. With any other one, Celery makes the message.
_SHARED = {
    "queue",
    "priority",
    "serializer",
    "delivery_mode",
    "ignore_result",
    "time_limit",
    "soft_time_limit",
}
_PLAIN = {str, int, bool, type(None)}
_ARGS, _KWARGS = {tuple, list, type(None)}, {dict, type(None)}
#: The most templates of an app, and how often it may change until Celery makes all messages.
_MOST, _MOST_CHANGES = 1000, 100

Key = tuple[Any, ...]


class _Route(NamedTuple):
    """A template, and where its messages go."""

    template: MessageTemplate
    broker: Broker
    #: Whether the messages never wait for the server's disk.
    is_transient: bool
    #: The queue as the app knows it.
    queue: Any


class _Routes:
    """An app's templates, and all that they depend on."""

    def __init__(self, app: Celery) -> None:
        self._pid, self._code, self._conf = os.getpid(), _code(), app.conf
        self._changes, self._depth = dict(app.conf.changes), len(app.conf.maps)
        self.is_plain = _is_plain(app)
        # Celery computes some of them late: they must not seem to change at the first message.
        self._amqp = dict(vars(app.amqp))
        self.known: dict[Key, _Route | None] = {}

    def has(self, key: Key) -> bool:
        """Returns whether there is nothing to learn for the key."""
        return key in self.known or not self.is_plain or len(self.known) >= _MOST

    def are_current(self, app: Celery) -> bool:
        """Returns whether nothing has changed since, be it a setting or a patched function."""
        return (
            app.conf is self._conf
            and self._changes == self._conf.changes
            and self._depth == len(self._conf.maps)
            and self._amqp == vars(app.amqp)
            and self._code == _code()
            and self._pid == os.getpid()
        )


def _code() -> tuple[Any, ...]:
    """Returns the functions that are skipped, as they are now."""
    return (
        Celery.send_task,
        Celery.producer_or_acquire,
        Producer.publish,
        Producer._publish,
        BrokerConnection.ensure,
        Channel.basic_publish,
    )


def _is_plain(app: Celery) -> bool:
    return (
        sends_plainly(app)
        and type(app).producer_or_acquire is Celery.producer_or_acquire
        and len(brokers(app.conf)) == 1
        and delays_in_table(app.conf)
        and bool(app.conf.task_publish_retry)
        and not app.conf.task_inherit_parent_priority
    )


class TemplateSender:
    """An app's `send_task`."""

    sends_by_templates = True

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._routes: _Routes | None = None
        self._changes = 0
        #: Whether tasks, by their names, become jobs.
        self._jobs: dict[str, bool] = {}

    def __call__(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Sends a task as `Celery.send_task` does, and returns its result.

        If the task has a policy, it becomes a job.
        """
        headers = carried_headers()
        if headers and JOB_HEADER not in (options.get("headers") or ()):  # from its row
            options = with_headers(options, headers)
        if self._jobs.get(name) is not False and self.makes_job(name):
            return ports.job_writer().send(self._app, self, name, args, kwargs, options)
        return self.send(name, args, kwargs, options)

    def send(
        self,
        name: str,
        args: Any,
        kwargs: Any,
        options: dict[str, Any],
        new_job: NewJob | None = None,
    ) -> Any:
        """Sends a task, by a message that makes a job if that is given, and returns its result."""
        key = _key(name, args, kwargs, options, new_job)
        if new_job is not None:
            headers = {JOB_HEADER: JOB, NEW_JOB_HEADER: new_job}
            options = {**options, "headers": {**(options.get("headers") or {}), **headers}}
        if key is None or self._changes > _MOST_CHANGES:
            return self.send_by_celery(name, args, kwargs, **options)
        routes = self._current_routes()
        if routes is None or not routes.has(key):
            result = self.send_by_celery(name, args, kwargs, **options)
            self._learn(key, name, options)
            return result
        route = routes.known.get(key)
        if route is not None and self._leads_on(route):
            task_id = options["task_id"] = options.get("task_id") or str(uuid4())
            parent = self._app.current_worker_task
            if self._publish(route, task_id, parent, args or (), kwargs or {}, new_job):
                return self._result(parent, **options)
        return self.send_by_celery(name, args, kwargs, **options)

    def makes_job(self, name: str) -> bool:
        """Returns whether a task has a policy, so that it becomes a job."""
        known = self._jobs.get(name)
        if known is None:
            app = self._app
            may_have_one = own_policy(app, name) is not None or has_policies(app)
            known = may_have_one and ports.job_writer().has_policy(app, name)
            self._jobs[name] = known
        return known

    def send_by_celery(self, name: str, *args: Any, **options: Any) -> Any:
        """Sends by the class's own method, whatever that is now: a test may have replaced it.

        What a worker's task sends waits for the database as its result does: its work may be done,
        and the rest of its chain would be lost.
        """
        method = type(self._app).send_task
        bound = method.__get__(self._app) if hasattr(method, "__get__") else method
        if self._app.current_worker_task is None or options.get("retry") is False:
            return bound(name, *args, **options)
        options["task_id"] = options.get("task_id") or str(uuid4())
        try:
            return bound(name, *args, **options)
        except OperationalError as error:
            if not is_outage(error):
                raise
        options["retry"] = False  # Celery has tried as often as the app's policy says

        def say(error: BaseException) -> None:
            logger.warning("Can't send task %s, trying again: %s", name, first_line(error))

        return server_errors.persist(lambda: bound(name, *args, **options), say, is_outage)

    def _current_routes(self) -> _Routes | None:
        routes = self._routes
        return routes if routes is not None and routes.are_current(self._app) else None

    def _learn(self, key: Key, name: str, options: dict[str, Any]) -> None:
        """Notes what to do with the next message of the key, once Celery has sent one."""
        routes = self._current_routes()
        if routes is None:
            routes = self._routes = _Routes(self._app)
            self._changes += 1
            self._jobs.clear()
        if routes.is_plain:
            routes.known[key] = _route(self._app, name, options)

    def _leads_on(self, route: _Route) -> bool:
        """Returns whether the route is still the one that Celery would take."""
        queues = self._app.amqp.queues
        return route.broker.is_connected and queues.get(route.template.row.queue) is route.queue

    def _publish(
        self,
        route: _Route,
        task_id: str,
        parent: Any,
        args: Any,
        kwargs: dict[str, Any],
        new_job: NewJob | None,
    ) -> bool:
        """Publishes a message; returns false if Celery must do it instead, or once more."""
        if type(task_id) is not str or held_messages.would_hold(task_id):
            return False
        root_id = parent.request.root_id or parent.request.id if parent else task_id
        parent_id = parent.request.id if parent else None
        try:
            payload = route.template.payload(task_id, args, kwargs, root_id, parent_id)
        except (TypeError, ValueError, RecursionError, EncodeError):
            return False
        row = route.template.row._replace(payload=payload)
        if new_job is not None:
            row = row._replace(job_id=task_id, new_job=new_job)
        joined = transaction_blocks.channel_for(route.broker)
        if joined is not None and joined.takes({"headers": {"id": task_id}}):
            joined.write(row, route.is_transient)
            return True
        try:
            route.broker.publish(row, route.is_transient)
        except Transport.connection_errors:
            return False  # Celery tries again, as often as the app's policy says
        return True

    def _result(
        self,
        parent: Any,
        task_id: str,
        result_cls: Any = None,
        ignore_result: Any = None,
        add_to_parent: bool = True,
        **options: Any,
    ) -> Any:
        result = (result_cls or self._app.AsyncResult)(task_id)
        result.ignored = ignore_result
        if add_to_parent and parent:
            parent.add_trail(result)
        return result


def _key(
    name: str, args: Any, kwargs: Any, options: dict[str, Any], new_job: NewJob | None
) -> Key | None:
    """Returns the template's key, or `None` if Celery must make the message."""
    if type(args) not in _ARGS or type(kwargs) not in _KWARGS or is_observed():
        return None
    key = [name, options.get("task_type"), None if new_job is None else new_job.key]
    for option, value in options.items():
        if option not in _OWN:
            kind = type(value)
            if kind not in _PLAIN or (value is not None and option not in _SHARED):
                return None
            key += (option, value, kind)
    return tuple(key)


def _route(app: Celery, name: str, options: dict[str, Any]) -> _Route | None:
    """Returns the route of a task's messages; `None` if Celery must make them all."""
    if options.get("task_type") is None and name in app.tasks:
        return None  # Celery adds the task's own options
    outbox, task_id, root_id, parent_id = HeldPublishes(), *(str(uuid4()) for _ in range(3))
    identity = {
        "task_id": task_id,
        "root_id": root_id,
        "parent_id": parent_id,
        "add_to_parent": False,
        "producer": app.amqp.Producer(OutboxConnection(outbox), auto_declare=False),
    }
    type(app).send_task(app, name, (), {}, **{**options, **identity})
    if len(outbox.messages) != 1 or (row := outbox.messages[0]).queue is None:
        return None
    message = TaskMessage(task_id, name)
    template = MessageTemplate.of(app, row, message, root_id=root_id, parent_id=parent_id)
    with app.producer_or_acquire() as producer:
        channel = producer.channel
        if template is None or type(channel) is not Channel or channel.body_encoding != "base64":
            return None
        return _Route(
            template=template,
            broker=channel.broker,
            is_transient=json.loads(row.payload)["properties"]["delivery_mode"] == 1,
            queue=app.amqp.queues.get(row.queue),
        )


def equip_apps() -> None:
    """Makes all apps that publish over pgbeat's transport send by templates."""
    with suppress(RuntimeError):  # another thread has just made an app
        for app in tuple(_get_active_apps()):
            # An app that has not read its settings must not do so for another one's sake.
            if app.configured:
                equip(app)


def equip(app: Celery) -> None:
    """Makes an app send by templates, if it publishes over pgbeat's transport."""
    if isinstance(sender_of(app), FirstSend | None) and delays_in_table(app.conf):
        app.send_task = TemplateSender(app)
