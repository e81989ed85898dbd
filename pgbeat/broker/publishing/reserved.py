"""Checks publish options for reserved names, so that a message can't pose as another.

A message's headers carry its task, its id and its place in a workflow, and any header becomes an
attribute of the task's request. A sender that sets those can end another job, run another task than
the record says, or answer in a worker's name. The same goes for signatures (in `link` and
`link_error`), and for the queues and exchanges that Celery and brokers use themselves.

Celery runs any mapping as a signature, whatever keys it has or lacks. Therefore what stands in a
link must be exactly a signature, and so must each one that a workflow or another link holds.
Arguments of tasks are data: what a task does with them is its own concern.
"""

from collections.abc import Iterator, Mapping, Sequence
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
        "queue", "priority", "expires", "headers", "serializer", "compression", "delivery_mode",
        "time_limit", "soft_time_limit", "ignore_result", "link", "link_error", "expiration",
        "argsrepr", "kwargsrepr",
    }
)  # fmt: skip
#: Options of a signature.
OF_SIGNATURES = FOR_USERS | {
    "countdown",
    "eta",
    "exchange",
    "exchange_type",
    "retry",
    "retry_policy",
    "routing_key",
}
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
    for where, signature in _linked(options, "options"):
        publish_options = signature["options"]
        unknown = sorted(str(name) for name in publish_options if name not in OF_SIGNATURES)
        if unknown:
            raise _reserved(
                f"{where} has the option {', '.join(map(repr, unknown))}, which a signature "
                f"must not have here; allowed are {', '.join(sorted(OF_SIGNATURES))}"
            )
        _check(publish_options, where, conf)


def _reserved(message: str) -> InvalidSchedule:
    return InvalidSchedule.of("options", "reserved", message)


def _check(options: Mapping[str, Any], where: str, conf: Mapping[str, Any] | None) -> None:
    custom_headers = options.get("headers")
    if isinstance(custom_headers, Mapping):
        reserved = sorted(str(name) for name in custom_headers if is_reserved_header(str(name)))
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


#: The fields of a signature: those that it must have, and the others.
_FIELDS, _MORE = ("task", "args", "kwargs", "options"), {"subtask_type", "immutable"}
#: Where workflows keep their signatures, among their keyword arguments.
_PARTS: dict[str, tuple[str, ...]] = {
    "chain": ("tasks",),
    "group": ("tasks",),
    "chord": ("header", "body"),
}
#: Celery's tasks that run signatures among their arguments.
_RUNNERS = frozenset(
    f"celery.{name}"
    for name in ("chain", "chord", "chord_unlock", "chunks", "group", "map", "starmap")
)
#: How deep signatures may be nested.
_DEEPEST = 30


def _linked(
    options: Mapping[str, Any], where: str, depth: int = 0
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields each signature that Celery would run for the options, with where it stands.

    Raises `InvalidSchedule` for anything else in its place.
    """
    for key in _LINKS:
        for link in _several(options.get(key)):
            yield from _signatures(link, f"{where}: {key}", depth)


def _several(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def _signatures(value: Any, where: str, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields a signature, and those within it."""
    if depth > _DEEPEST:
        raise _malformed(f"{where}: signatures are nested more than {_DEEPEST} deep")
    signature = _require(value, where)
    where = f"{where}: the signature of {signature['task']!r}"
    yield where, signature
    for part in _PARTS.get(signature.get("subtask_type") or "", ()):
        for inner in _several(signature["kwargs"][part]):
            yield from _signatures(inner, f"{where}: {part}", depth + 1)
    yield from _linked(signature["options"], where, depth + 1)


def _require(signature: Any, where: str) -> Mapping[str, Any]:
    """Returns a signature. Raises `InvalidSchedule` unless it has exactly the fields of one."""
    if not isinstance(signature, Mapping) or not signature.keys() >= set(_FIELDS):
        message = f"must be a signature (an object: {', '.join(_FIELDS)}), got {signature!r:.200}"
        raise _malformed(f"{where}: {message}")
    others = sorted(map(str, signature.keys() - {*_FIELDS, *_MORE}))
    if others:
        raise _reserved(f"{where}: a signature has no {', '.join(map(repr, others))}")
    for field, kinds, noun in _KINDS:
        value = signature.get(field)
        if not isinstance(value, kinds):
            raise _malformed(f"{where}: {field} of a signature must be {noun}, got {value!r:.200}")
    if signature.get("subtask_type") is not None:
        _require_workflow(signature, where)
    elif signature["task"] in _RUNNERS:
        message = "runs signatures that are its arguments; give a chain, a group or a chord as such"
        raise _reserved(f"{where}: {signature['task']!r} {message}")
    return signature


_KINDS: tuple[tuple[str, Any, str], ...] = (
    ("task", str, "a task's name"),
    ("args", list | tuple, "a list"),
    ("kwargs", Mapping, "an object"),
    ("options", Mapping, "an object"),
    ("immutable", bool | None, "true or false"),
)


def _require_workflow(signature: Mapping[str, Any], where: str) -> None:
    """Raises `InvalidSchedule` unless it is a chain, group or chord of nothing but signatures."""
    kind, kwargs = signature["subtask_type"], signature["kwargs"]
    parts = _PARTS.get(kind) if isinstance(kind, str) else None
    if parts is None:
        known = ", ".join(_PARTS)
        raise _malformed(f"{where}: subtask_type must be null or one of {known}, got {kind!r:.200}")
    if signature["task"] != f"celery.{kind}":
        message = f"the task of a {kind} must be 'celery.{kind}', got {signature['task']!r:.200}"
        raise _malformed(f"{where}: {message}")
    if not kwargs.keys() >= set(parts) or kwargs.keys() - {*parts, "kwargs"}:
        raise _malformed(f"{where}: kwargs of a {kind} must be {', '.join(parts)}")
    if not _is_empty(kwargs.get("kwargs")):
        raise _reserved(f"{where}: a {kind} has no kwargs of its own")
    if not isinstance(kwargs.get("tasks", ()), list | tuple):
        raise _malformed(f"{where}: tasks of a {kind} must be a list")


def _is_empty(kwargs: Any) -> bool:
    """Returns whether they are none: each time that Celery copies a chord, it wraps them again."""
    while isinstance(kwargs, Mapping) and list(kwargs) == ["kwargs"]:
        kwargs = kwargs["kwargs"]
    return kwargs is None or kwargs == {}


def _malformed(message: str) -> InvalidSchedule:
    return InvalidSchedule.of("options", "malformed", message)


def linked(options: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the signatures that Celery would run for the options, also nested ones.

    Raises `InvalidSchedule` for anything else in their place.
    """
    return [signature for _, signature in _linked(options, "options")]


def check_for_user(options: Mapping[str, Any]) -> set[str]:
    """Returns the queues that options name, also in links.

    Raises `Forbidden` for options that only administrators may give.
    """
    queues = set()
    for where, link in [("options", None), *(("link", signature) for signature in linked(options))]:
        named = options if link is None else link["options"]
        others = sorted(set(named) - FOR_USERS)
        if others:
            raise Forbidden(
                f"{where}: only administrators may give {', '.join(map(repr, others))}; "
                f"you may give {', '.join(sorted(FOR_USERS))}"
            )
        if link is not None and link.get("subtask_type") is not None:
            raise Forbidden(
                f"link: only administrators may give a {link['subtask_type']}; you may give the "
                "signature of a task"
            )
        queue = named.get("queue")
        if _is_uuid(queue):
            raise Forbidden(
                f"{where}: queue {queue!r} may be where a client waits for replies; only "
                "administrators may name it"
            )
        if queue is not None:
            queues.add(str(queue))
    return queues


def _is_uuid(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(UUID(value))
    except ValueError:
        return False
