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
from celery.app.routes import MapRoute
from celery.backends.base import Backend
from celery.utils.saferepr import saferepr
from kombu.serialization import dumps as serialize

from pgbeat.broker.messages import Message

#: Functions that templates replace, with the module that each must come from. If one is patched or
#: overridden, Celery makes every message.
_STOCK = {
    "apply_async": celery.app.task,
    "shadow_name": celery.app.task,
    "_get_exec_options": celery.app.task,
    "send_task": celery.app.base,
}
_BEFORE, _AFTER = signals.before_task_publish, signals.after_task_publish
_SENT = signals.task_sent
#: The most templates. An app that gives each message other options can't use them.
_MOST = 1000
_TAGS = ("id", "root_id", "argsrepr", "kwargsrepr")
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
        self._known: dict[tuple[str, str, str], _Template | None] = {}

    def message(self, message: TaskMessage) -> Message | None:
        """Returns the message, or `None` if Celery must make it."""
        template = self._find(message)
        return template.fill(message) if template else None

    @property
    def are_usable(self) -> bool:
        """Returns whether no receiver of a signal would miss a message that Celery doesn't make."""
        return not (_BEFORE.receivers or _AFTER.receivers or _SENT.receivers)

    def knows(self, message: TaskMessage) -> bool:
        """Returns whether it is known if there can be a template of the message."""
        return _key(message) in self._known

    def envelope(self, message: TaskMessage, varying: Sequence[str]) -> Message | None:
        """Returns the message with gaps, or `None` if Celery must make it."""
        template = self._find(message)
        return template.envelope(message, varying) if template else None

    def _find(self, message: TaskMessage) -> "_Template | None":
        if not self.are_usable or "eta" in message.options:
            return None
        return self._known.get(_key(message))

    def learn(self, message: TaskMessage, made: Sequence[Message]) -> None:
        """Makes a template of what Celery made, if that can be one."""
        if "eta" in message.options:  # each message has another one
            return
        key = _key(message)
        if len(self._known) >= _MOST:
            self._known.clear()
        if key in self._known or not self.are_usable:
            return
        template = None
        if len(made) == 1 and self._is_plain(message.task):
            registered = self._app.tasks[message.task]
            check = registered.__header__ if registered.typing else None
            template = _Template.of(made[0], message, check, _Repr(self._app))
        self._known[key] = template

    def _is_plain(self, name: str) -> bool:
        """Returns whether all code that makes the task's messages is as Celery ships it."""
        app, task = self._app, self._app.tasks.get(name)
        if task is None:
            return False
        owners = {"send_task": app}
        return (
            all(
                _is_stock(getattr(owners.get(function, task), function, None), module)
                for function, module in _STOCK.items()
            )
            and _is_stock(app.amqp.as_task_v2, celery.app.amqp)
            and _is_stock(app.amqp.send_task_message, celery.app.amqp)
            and _is_stock(app.amqp.Producer.publish, kombu.messaging)
            and _is_stock(app.amqp.Producer._publish, kombu.messaging)
            and app.conf.task_protocol == 2
            and not app.conf.task_always_eager
            and not app.conf.task_send_sent_event
            and getattr(task, "_dump_pydantic_arguments", None) is None
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

    def args(self, args: tuple[Any, ...]) -> str:
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
_word = re.compile(r"[\w .:/@+-]*", re.ASCII).fullmatch


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is str:
        return len(value) <= _SHORT and _word(value) is not None
    return (kind is int and -(10**18) < value < 10**18) or kind is bool or value is None


#: Encodes JSON as kombu does. kombu itself must encode other values.
_encode = json.JSONEncoder().encode
_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


class _Template:
    """One task's message with gaps for the id, the arguments and the delivery tag."""

    def __init__(self, row: Message, check: Any, shown: _Repr) -> None:
        self._row, self._check, self._shown = row, check, shown
        self._parts: list[str] = []
        self._names: list[str] = []

    @classmethod
    def of(cls, row: Message, message: TaskMessage, check: Any, shown: _Repr) -> "_Template | None":
        """Returns the template of a message, or `None` if some part is not as expected."""
        payload = json.loads(row.payload)
        headers, properties = payload["headers"], payload["properties"]
        if (
            payload["content-type"] != "application/json"
            or payload["content-encoding"] != "utf-8"
            or headers.get("compression")
            or headers.get("eta")
            or headers.get("expires")
            or headers.get("stamps")
            or properties.get("body_encoding") != "base64"
            or "expiration" in properties
        ):
            return None
        made = cls(row, check, shown)
        values = made._values(message)
        actual = {
            **{name: headers.get(name) for name in (*_TAGS, *_varying(message))},
            "correlation_id": properties.get("correlation_id"),
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
                "correlation_id": marks["correlation_id"],
                "delivery_tag": marks["delivery_tag"],
            },
        }
        rest = json.dumps(marked)
        for name, mark in sorted(marks.items(), key=lambda item: rest.index(item[1])):
            before, rest = rest.split(f'"{mark}"')
            made._parts.append(before)
            made._names.append(name)
        made._parts.append(rest)
        return made

    def fill(self, message: TaskMessage) -> Message:
        """Returns the message. Raises `TypeError` if the task does not accept the arguments."""
        if self._check is not None:
            self._check(*message.args, **message.kwargs)
        payload = self._joined(self._values(message))
        if self._row.job_id is None:
            return self._row._replace(payload=payload)
        return self._row._replace(payload=payload, job_id=message.job_id)

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

    def _joined(self, values: Mapping[str, Any]) -> str:
        pieces = [self._parts[0]]
        for name, part in zip(self._names, self._parts[1:], strict=True):
            value = values[name]
            pieces += (quoted(value) if type(value) is str else _encode(value), part)
        return "".join(pieces)

    def _values(self, message: TaskMessage) -> dict[str, Any]:
        job_id, args, kwargs = message.job_id, tuple(message.args), dict(message.kwargs)
        try:
            body = _encode((args, kwargs, _EMBED))
        except TypeError:
            body = serialize((args, kwargs, _EMBED), serializer="json")[2]
        return {
            **dict.fromkeys(_IDS, job_id),
            "argsrepr": self._shown.args(args),
            "kwargsrepr": self._shown.kwargs(kwargs),
            "body": b64encode(body.encode()).decode(),
            **_varying(message),
        }


def _varying(message: TaskMessage) -> dict[str, Any]:
    """Returns the headers that differ from message to message."""
    return {name: value for name, value in message.headers.items() if value is not True}
