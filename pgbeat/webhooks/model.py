"""Webhooks: who is told of what, at which URL, signed with which secret; their rows.

Their secrets are read by `pgbeat.deliveries` alone; no row that is handed out holds one.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, delete, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from pgbeat.database.tables import EVENTS as EVENTS
from pgbeat.database.tables import webhooks
from pgbeat.errors import AlreadyExists, InvalidJob, NotFound, Problems
from pgbeat.names import NAMESPACE, name_problem
from pgbeat.suggest import did_you_mean
from pgbeat.webhooks.http import check_url
from pgbeat.webhooks.signing import check_secret, new_secret

#: Hours for which a secret signs beside the one that took its place.
OLD_SECRET_HOURS = 24
#: Deliveries of a webhook under way at once, as long as they succeed; one after a failure.
SLOTS = 8


class Webhook(NamedTuple):
    """A row of `pgbeat.webhooks`, without its secret."""

    id: int
    namespace: str
    name: str
    url: str
    events: list[str]
    enabled: bool
    #: Why it was disabled, and by whom or what.
    disabled_reason: str | None
    #: Deliveries under way at once, at most.
    slots: int
    created_by: str | None
    created_at: datetime
    updated_at: datetime
    #: How its secret begins and ends.
    secret_hint: str
    #: Until when the secret before this one signs too.
    previous_until: datetime | None

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of it."""
        return "webhook", self.name, {name: getattr(self, name) for name in _AUDITED}


_AUDITED = (
    "url", "events", "enabled", "disabled_reason", "secret_hint", "previous_until", "created_by",
)  # fmt: skip
_HINT = func.left(webhooks.c.secret, 6).op("||")("…").op("||")(func.right(webhooks.c.secret, 4))
_COLUMNS = [
    _HINT.label(name) if name == "secret_hint" else webhooks.c[name] for name in Webhook._fields
]


def _is(name: str, namespace: str) -> ColumnElement[bool]:
    return (webhooks.c.name == name) & (webhooks.c.namespace == namespace)


def get(
    connection: Connection, name: str, *, namespace: str = NAMESPACE, for_update: bool = False
) -> Webhook:
    """Returns the webhook of that name. Raises `NotFound`, which names the nearest there is."""
    query = select(*_COLUMNS).where(_is(name, namespace))
    row = connection.execute(query.with_for_update() if for_update else query).one_or_none()
    if row is None:
        place = "" if namespace == NAMESPACE else f" in namespace {namespace!r}"
        hint = did_you_mean(name, [row.name for row in listing(connection, namespace=namespace)])
        raise NotFound(f"there is no webhook {name!r}{place}" + (f"; {hint}" if hint else ""))
    return Webhook(*row)


def listing(connection: Connection, *, namespace: str = NAMESPACE) -> list[Webhook]:
    """Returns all webhooks, by name."""
    query = select(*_COLUMNS).where(webhooks.c.namespace == namespace).order_by(webhooks.c.name)
    return [Webhook(*row) for row in connection.execute(query)]


def add(
    connection: Connection,
    name: str,
    url: str,
    events: Sequence[str],
    *,
    namespace: str = NAMESPACE,
    secret: str | None = None,
    created_by: str | None = None,
    private: bool = False,
) -> tuple[Webhook, str]:
    """Adds a webhook; it, and its secret, which is random unless given and can't be read again.

    `private`: whether it may go to private networks. Raises `InvalidJob`, which lists every
    mistake, or `AlreadyExists`.
    """
    given = secret or new_secret()
    problems = Problems()
    unfit = name_problem(name)
    if unfit:
        problems.add("name", "malformed", unfit)
    problems += [*check_url(url, private=private), *_check_events(events), *check_secret(given)]
    problems.raise_if_any(InvalidJob, subject=f"webhook {name!r}")
    values = {
        "namespace": namespace, "name": name, "url": url, "secret": given,
        "events": _in_order(events), "slots": SLOTS, "created_by": created_by,
    }  # fmt: skip
    statement = insert(webhooks).values(values).on_conflict_do_nothing()
    added = connection.execute(statement.returning(*_COLUMNS)).one_or_none()
    if added is None:
        raise AlreadyExists(
            f"there is a webhook {name!r} already; change it with `pgbeat webhooks update`"
        )
    return Webhook(*added), given


def edit(
    connection: Connection,
    name: str,
    *,
    namespace: str = NAMESPACE,
    url: str | None = None,
    events: Sequence[str] | None = None,
    secret: str | None = None,
    private: bool = False,
) -> Webhook:
    """Changes what is given. With another secret, the one before signs too for a day.

    Raises `InvalidJob`, which lists every mistake, or `NotFound`.
    """
    get(connection, name, namespace=namespace, for_update=True)
    problems = Problems(check_url(url, private=private) if url is not None else ())
    problems += _check_events(events) if events is not None else ()
    problems += check_secret(secret) if secret is not None else ()
    problems.raise_if_any(InvalidJob, subject=f"webhook {name!r}")
    values: dict[str, Any] = {"updated_at": func.now()}
    if url is not None:
        values["url"] = url
    if events is not None:
        values["events"] = _in_order(events)
    if secret is not None:
        until = func.now() + func.make_interval(0, 0, 0, 0, OLD_SECRET_HOURS)
        values.update(secret=secret, previous_secret=webhooks.c.secret, previous_until=until)
    statement = update(webhooks).where(_is(name, namespace)).values(values)
    return Webhook(*connection.execute(statement.returning(*_COLUMNS)).one())


def remove(connection: Connection, name: str, *, namespace: str = NAMESPACE) -> None:
    """Deletes a webhook with its deliveries. Raises `NotFound`."""
    get(connection, name, namespace=namespace, for_update=True)
    connection.execute(delete(webhooks).where(_is(name, namespace)))


def enable(connection: Connection, name: str, *, namespace: str = NAMESPACE) -> Webhook:
    """Has it told of what happens from now on. Raises `NotFound`."""
    get(connection, name, namespace=namespace, for_update=True)
    values = {"enabled": True, "disabled_reason": None, "slots": SLOTS, "updated_at": func.now()}
    statement = update(webhooks).where(_is(name, namespace)).values(values)
    return Webhook(*connection.execute(statement.returning(*_COLUMNS)).one())


_DISABLE = text(
    """
    UPDATE pgbeat.webhooks SET enabled = false, disabled_reason = :reason, updated_at = now()
     WHERE id = :id AND enabled
    """
)
#: How a delivery's log ends that is not tried any more.
_STOP = text(
    """
    UPDATE pgbeat.deliveries
       SET state = 'failed', finished_at = now(), next_at = NULL, sent_at = NULL,
           log = log || jsonb_build_object('at', now(), 'error', 'the webhook was disabled')
     WHERE webhook_id = :id AND state = 'pending'
    """
)


def disable(connection: Connection, webhook_id: int, reason: str) -> bool:
    """Has it told of nothing more: what was to be delivered has failed. Whether it was enabled."""
    values = {"id": webhook_id, "reason": reason}
    was_enabled = connection.execute(_DISABLE, values).rowcount > 0
    connection.execute(_STOP, {"id": webhook_id})
    return was_enabled


def _check_events(events: Sequence[str]) -> Problems:
    problems = Problems()
    if not events:
        problems.add("events", "required", f"events: name one or more of {', '.join(EVENTS)}")
    for event in dict.fromkeys(events):
        if event not in EVENTS:
            hint = did_you_mean(event, EVENTS) or f"there are {', '.join(EVENTS)}"
            problems.add("events", "unknown", f"events: {event!r} is none; {hint}")
    return problems


def _in_order(events: Collection[str]) -> list[str]:
    return [event for event in EVENTS if event in events]
