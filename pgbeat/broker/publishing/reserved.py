"""Checks publish options for reserved names, so that a message can't pose as another.

A message's headers carry its task, its id and its place in a workflow, and any header becomes an
attribute of the task's request. A sender that sets those can end another job, run another task than
the record says, or answer in a worker's name. The same goes for signatures (in `link` and
`link_error`), and for the queues and exchanges that Celery and brokers use themselves.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from uuid import UUID

from celery import Celery
from celery.app.task import Context

from pgbeat.errors import Forbidden, InvalidSchedule

#: Prefixes of header names: pgbeat's own, and those of attributes of every Python object.
_PREFIXES = ("pgbeat", "_")
#: Headers by which AMQP brokers route or count copies of a message.
_OF_BROKERS = frozenset({"CC", "BCC", "x-death", "x-delay"})
#: Headers that Celery or kombu reads although Celery's message constructors don't set them.
_UNLISTED = frozenset({"compression", "groups", "meth", "redelivered"})

#: Options of `apply_async` that place a message in a workflow; only Celery and pgbeat set them.
IDENTITY = frozenset({"reply_to", "group_id", "root_id", "parent_id"})
#: Options that people who are not administrators may give: they affect only the message, never the
#: process that publishes it.
FOR_USERS = frozenset(
    {
        "queue", "exchange", "routing_key", "priority", "expires", "headers", "serializer",
        "compression", "delivery_mode", "time_limit", "soft_time_limit", "ignore_result", "link",
        "link_error", "expiration", "argsrepr", "kwargsrepr",
    }
)  # fmt: skip
#: Options of a signature.
OF_SIGNATURES = FOR_USERS | {"countdown", "eta", "exchange_type", "retry", "retry_policy"}
_LINKS = ("link", "link_error")


@lru_cache(maxsize=1)
def headers() -> frozenset[str]:
    """Returns the names of headers that Celery, kombu and brokers act on."""
    app = Celery("pgbeat.reserved", set_as_current=False, autofinalize=False, broker="memory://")
    second, first = app.amqp.as_task_v2("id", "task"), app.amqp.as_task_v1("id", "task")
    of_messages = {*second.headers, *first.headers, *first.body}
    return frozenset({*of_messages, *vars(Context), *_UNLISTED, *_OF_BROKERS})


def is_reserved_header(name: str) -> bool:
    """Returns whether only Celery, a broker or pgbeat may set a header of that name."""
    return name.lower().startswith(_PREFIXES) or name in headers()


def is_internal(place: str, conf: Mapping[str, Any] | None = None) -> bool:
    """Returns whether Celery or the broker uses a queue, routing key or exchange of that name.

    Celery does for remote control, events, results and delayed delivery. `conf` is the app's
    configuration, which may rename them.
    """
    names = {"celeryev", "celeryresults"}
    prefixes = ["celeryev.", "celery_delayed_", "amq.gen-", "amq.rabbitmq."]
    if conf is not None:
        names |= {str(conf.get("event_exchange")), str(conf.get("result_exchange"))}
        prefixes.append(f"{conf.get('event_queue_prefix') or 'celeryev'}.")
    return place in names or place.endswith(".pidbox") or place.startswith(tuple(prefixes))


def check(options: Mapping[str, Any], conf: Mapping[str, Any] | None = None) -> None:
    """Raises `InvalidSchedule` for reserved headers, internal queues and exchanges.

    Checks the options' signatures, too.
    """
    _check(options, "options", conf)
    for key in _LINKS:
        for signature in signatures(options.get(key)):
            where = f"options: {key}: the signature of {signature['task']!r}"
            own = signature.get("options") or {}
            if not isinstance(own, Mapping):
                said = f"{where}: its options must be an object, got {own!r}"
                raise InvalidSchedule.of("options", "malformed", said)
            unknown = sorted(str(name) for name in own if name not in OF_SIGNATURES)
            if unknown:
                raise _reserved(
                    f"{where} has the option {', '.join(map(repr, unknown))}, which a signature "
                    f"must not have here; allowed are {', '.join(sorted(OF_SIGNATURES))}"
                )
            _check(own, where, conf)


def _reserved(message: str) -> InvalidSchedule:
    return InvalidSchedule.of("options", "reserved", message)


def _check(options: Mapping[str, Any], where: str, conf: Mapping[str, Any] | None) -> None:
    given = options.get("headers")
    if isinstance(given, Mapping):
        reserved = sorted(str(name) for name in given if is_reserved_header(str(name)))
        if reserved:
            raise _reserved(
                f"{where}: headers has {', '.join(map(repr, reserved))}, which only Celery or "
                "pgbeat may set; give your own headers other names"
            )
    for key in ("queue", "exchange", "routing_key"):
        value = options.get(key)
        name = value if isinstance(value, str) else getattr(value, "name", None)
        if isinstance(name, str) and is_internal(name, conf):
            raise _reserved(
                f"{where}: {key} {name!r} serves Celery or the broker itself; name one of the app's"
            )


def signatures(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yields each signature in a value, also those nested in other signatures."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            if "task" in each and ("options" in each or "subtask_type" in each):
                yield each
            waiting.extend(each.values())
        elif isinstance(each, list | tuple):
            waiting.extend(each)


def linked(options: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the signatures that options have run after the task, also nested ones."""
    return [each for key in _LINKS for each in signatures(options.get(key))]


def check_for_user(options: Mapping[str, Any]) -> None:
    """Raises `Forbidden` for options that only administrators may give."""
    for where, given in [("options", options), *(("link", each) for each in linked(options))]:
        own = given if where == "options" else given.get("options") or {}
        others = sorted(set(own) - FOR_USERS - ({"countdown", "eta"} if where == "link" else set()))
        if others:
            raise Forbidden(
                f"{where}: only administrators may give {', '.join(map(repr, others))}; "
                f"you may give {', '.join(sorted(FOR_USERS))}"
            )
        if where == "link" and given.get("subtask_type") is not None:
            raise Forbidden(
                f"link: only administrators may give a {given['subtask_type']}; you may give the "
                "signature of a task"
            )
        for key in ("queue", "routing_key"):
            if _is_uuid(own.get(key)):
                raise Forbidden(
                    f"{where}: {key} {own[key]!r} may be where a client waits for replies; only "
                    "administrators may name it"
                )


def _is_uuid(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(UUID(value))
    except ValueError:
        return False
