"""Makes the messages of plain tasks from templates, faster than Celery and with the same bytes.

Celery takes most of a millisecond for a message, and two messages of one task are nearly the same.
Celery makes the first. The next ones are copies of it with other values, unless the difference
could be noticed: by a signal receiver, by overridden or patched code, or because of the time.
"""

import inspect
import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, NamedTuple
from uuid import uuid4

import celery.app.amqp
import celery.app.base
import celery.app.task
import kombu.messaging
from celery import Celery, signals
from celery.app.routes import MapRoute, Router
from celery.backends.base import Backend
from celery.utils.saferepr import saferepr
from kombu.serialization import dumps as serialize

from pgbeat.broker.messages import Message
from pgbeat.broker.publishing.first_send import sender_of

#: Functions that templates replace, with the module that each must come from. If one is patched or
#: overridden, Celery makes every message.
_STOCK = {
    "apply_async": celery.app.task,
    "shadow_name": celery.app.task,
    "_get_exec_options": celery.app.task,
}
_BEFORE, _AFTER = signals.before_task_publish, signals.after_task_publish
_SENT = signals.task_sent
#: The most templates. An app that gives each message other options can't use them.
_MOST = 1000
_TAGS = ("id", "root_id", "parent_id", "argsrepr", "kwargsrepr")
_PROPERTIES = ("correlation_id", "reply_to")
#: Gaps that have the job's id. (The delivery tag must be unique; Celery's is random.)
_IDS = ("id", "root_id", "correlation_id", "delivery_tag")


def _is_stock(function: Any, module: Any) -> bool:
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    plain = not hasattr(function, "__wrapped__")
    return plain and code is not None and code.co_filename == module.__file__


class TaskMessage(NamedTuple):
    """A task to send: what `apply_async` needs to make a job's message."""

    job_id: str
    task: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}
    #: pgbeat's headers. Those that are not `True` differ from message to message.
    headers: Mapping[str, Any] = {}


class MessageTemplates:
    """Templates of an app's messages, by task and options."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._known: dict[tuple[str, str, str], MessageTemplate | None] = {}

    def message(self, message: TaskMessage) -> Message | None:
        """Returns the message, or `None` if Celery must make it."""
        template = self._find(message)
        return template.fill(message) if template else None

    @property
    def are_usable(self) -> bool:
        """Returns whether no receiver of a signal would miss a message that Celery doesn't make."""
        return not is_observed()

    def knows(self, message: TaskMessage) -> bool:
        """Returns whether it is known if there can be a template of the message."""
        return _key(message) in self._known

    def envelope(self, message: TaskMessage, varying: Sequence[str]) -> Message | None:
        """Returns the message with gaps, or `None` if Celery must make it."""
        template = self._find(message)
        return template.envelope(message, varying) if template else None

    def _find(self, message: TaskMessage) -> "MessageTemplate | None":
        if not self.are_usable or "eta" in message.options:
            return None
        return self._known.get(_key(message))

    def learn(self, message: TaskMessage, rows: Sequence[Message]) -> None:
        """Makes a template of what Celery made, if that can be one."""
        if "eta" in message.options:  # each message has another one
            return
        key = _key(message)
        if len(self._known) >= _MOST:
            self._known.clear()
        if key in self._known or not self.are_usable:
            return
        template = None
        if len(rows) == 1 and self._is_plain(message.task):
            registered = self._app.tasks[message.task]
            check = registered.__header__ if registered.typing else None
            template = MessageTemplate.of(self._app, rows[0], message, check)
        self._known[key] = template

    def _is_plain(self, name: str) -> bool:
        """Returns whether all code that makes the task's messages is as Celery ships it."""
        task = self._app.tasks.get(name)
        return (
            task is not None
            and all(
                _is_stock(getattr(task, function, None), module)
                for function, module in _STOCK.items()
            )
            and getattr(task, "_dump_pydantic_arguments", None) is None
            and not self._app.conf.task_always_eager
            and sends_plainly(self._app)
        )


def is_observed() -> bool:
    """Returns whether a signal's receiver must see each message."""
    return bool(_BEFORE.receivers or _AFTER.receivers or _SENT.receivers)


def sends_plainly(app: Celery) -> bool:
    """Returns whether what `send_task` calls is as Celery ships it, for every message."""
    sender = sender_of(app)
    return (
        (sender is None or hasattr(sender, "sends_by_templates"))
        and _is_stock(type(app).send_task, celery.app.base)
        and _is_stock(app.amqp.as_task_v2, celery.app.amqp)
        and _is_stock(app.amqp.create_task_message, celery.app.amqp)
        and _is_stock(app.amqp.send_task_message, celery.app.amqp)
        and _is_stock(app.amqp.Producer.publish, kombu.messaging)
        and _is_stock(app.amqp.Producer._publish, kombu.messaging)
        and app.conf.task_protocol == 2
        and not app.conf.task_send_sent_event
        and type(app.amqp.router) is Router
        and all(isinstance(route, MapRoute) for route in app.amqp.routes)
        and type(app.backend).on_task_call is Backend.on_task_call
    )


def _key(message: TaskMessage) -> tuple[str, str, str]:
    options = repr(sorted(message.options.items())) if message.options else ""
    return message.task, options, ",".join(message.headers)


class _Repr:
    """Formats arguments as Celery does for a message's headers."""

    def __init__(self, app: Celery) -> None:
        self._args_limit = app.amqp.argsrepr_maxsize
        self._kwargs_limit = app.amqp.kwargsrepr_maxsize
        self._levels = app.conf.get("task_repr_maxlevels", 3)

    def args(self, args: tuple[Any, ...] | list[Any]) -> str:
        if len(args) <= _FEW and all(_is_plain(value) for value in args):
            return repr(args)
        return str(saferepr(args, self._args_limit, maxlevels=self._levels))

    def kwargs(self, kwargs: dict[str, Any]) -> str:
        if len(kwargs) <= _FEW and all(
            _is_plain(key) and _is_plain(value) for key, value in kwargs.items()
        ):
            return repr(kwargs)
        return str(saferepr(kwargs, self._kwargs_limit, maxlevels=self._levels))


#: Up to these lengths `repr` of plain values equals Celery's `saferepr` and stays below its limit.
_FEW, _SHORT = 8, 40
_ATOMS = {bool, float, type(None)}
_word = re.compile(r"[\w .:/@+-]*", re.ASCII).fullmatch


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is str:
        return len(value) <= _SHORT and _word(value) is not None
    return (kind is int and -(10**18) < value < 10**18) or kind in _ATOMS


#: Encodes JSON as kombu does. kombu itself must encode other values.
_encode = json.JSONEncoder().encode
_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def _is_plain_json(payload: Mapping[str, Any]) -> bool:
    """Returns whether a message is in JSON, for now and for good."""
    headers, properties = payload["headers"], payload["properties"]
    return (
        payload["content-type"] == "application/json"
        and payload["content-encoding"] == "utf-8"
        and not any(headers.get(name) for name in ("compression", "eta", "expires", "stamps"))
        and properties.get("body_encoding") == "base64"
        and "expiration" not in properties
    )


class MessageTemplate:
    """One task's message with gaps for ids, arguments, the sending thread and the delivery tag."""

    def __init__(self, app: Celery, row: Message, check: Any) -> None:
        self._app, self.row, self._check, self._shown = app, row, check, _Repr(app)
        self._parts: list[str] = []
        self._names: list[str] = []

    @classmethod
    def of(
        cls, app: Celery, row: Message, message: TaskMessage, check: Any = None, **senders: str
    ) -> "MessageTemplate | None":
        """Returns the template of a message, or `None` if some part is not as expected.

        `check` raises `TypeError` for arguments that the task does not accept; `senders` are the
        `root_id` and `parent_id` of a message that a task sent.
        """
        payload = json.loads(row.payload)
        headers, properties = payload["headers"], payload["properties"]
        if not _is_plain_json(payload):
            return None
        template = cls(app, row, check)
        values = {**template._values(message), **senders}
        actual = {
            **{name: headers.get(name) for name in (*_TAGS, *_varying(message))},
            **{name: properties.get(name) for name in _PROPERTIES},
            "body": payload["body"],
        }
        if any(actual[name] != values[name] for name in actual):
            return None
        # Each value is found by a mark that occurs nowhere else in the message.
        marks = {name: f"gap-{uuid4()}" for name in values}
        marked = {
            **payload,
            "body": marks["body"],
            "headers": {**headers, **{name: marks[name] for name in (*_TAGS, *_varying(message))}},
            "properties": {
                **properties,
                **{name: marks[name] for name in (*_PROPERTIES, "delivery_tag")},
            },
        }
        rest = json.dumps(marked)
        for name, mark in sorted(marks.items(), key=lambda item: rest.index(item[1])):
            before, rest = rest.split(f'"{mark}"')
            template._parts.append(before)
            template._names.append(name)
        template._parts.append(rest)
        return template

    def fill(self, message: TaskMessage) -> Message:
        """Returns the message. Raises `TypeError` if the task does not accept the arguments."""
        if self._check is not None:
            self._check(*message.args, **message.kwargs)
        job_id = None if self.row.job_id is None else message.job_id
        return self.row._replace(payload=self._joined(self._values(message)), job_id=job_id)

    def envelope(self, message: TaskMessage, varying: Sequence[str]) -> Message:
        """Returns the message with gaps. Raises `TypeError` as `fill` does."""
        filled = self.fill(message)
        mark = f"gap-{uuid4()}-"
        values = self._values(message)
        gaps = {**dict.fromkeys(_IDS, "id"), **{n: n for n in varying if n in values}}
        marked = self._joined({**values, **{n: mark + gap for n, gap in gaps.items()}})
        marked = marked.replace("%", "%%").replace(f'"{mark}id"', '"%(id)s"')
        for name in varying:
            marked = marked.replace(f'"{mark}{name}"', f"%({name})s")
        return filled._replace(payload=marked, job_id=None)

    def payload(
        self,
        task_id: str,
        args: tuple[Any, ...] | list[Any],
        kwargs: dict[str, Any],
        root_id: str,
        parent_id: str | None,
    ) -> str:
        """Returns the payload of a message that a task (`parent_id`), or none, sends."""
        values = self._gaps(task_id, args, kwargs)
        return self._joined({**values, "root_id": root_id, "parent_id": parent_id})

    def _joined(self, values: Mapping[str, Any]) -> str:
        pieces = [self._parts[0]]
        for name, part in zip(self._names, self._parts[1:], strict=True):
            value = values[name]
            pieces += (quoted(value) if type(value) is str else _encode(value), part)
        return "".join(pieces)

    def _values(self, message: TaskMessage) -> dict[str, Any]:
        job_id, args, kwargs = message.job_id, tuple(message.args), dict(message.kwargs)
        gaps = self._gaps(job_id, args, kwargs)
        return {**gaps, **_varying(message)} if message.headers else gaps

    def _gaps(
        self, task_id: str, args: tuple[Any, ...] | list[Any], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            body = _encode((args, kwargs, _EMBED))
        except TypeError:
            body = serialize((args, kwargs, _EMBED), serializer="json")[2]
        return {
            "id": task_id,
            "root_id": task_id,
            "correlation_id": task_id,
            "delivery_tag": task_id,
            "parent_id": None,
            "argsrepr": self._shown.args(args),
            "kwargsrepr": self._shown.kwargs(kwargs),
            "body": b64encode(body.encode()).decode(),
            "reply_to": self._app.thread_oid,
        }


def _varying(message: TaskMessage) -> dict[str, Any]:
    """Returns the headers that differ from message to message."""
    return {name: value for name, value in message.headers.items() if value is not True}
