"""Changes webhooks and repeats their deliveries for people, with a function for each verb.

Each takes an open unit of work, and records the change in the audit log.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import func, update
from sqlalchemy.dialects.postgresql import insert

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database.tables import webhooks as table
from pgbeat.errors import AlreadyExists, InvalidJob, Problem, Problems
from pgbeat.jobs.preparing.details import labels_problem
from pgbeat.names import name_problem
from pgbeat.suggest import did_you_mean
from pgbeat.webhooks import deliveries, outbox
from pgbeat.webhooks import model as webhooks
from pgbeat.webhooks.deliveries import Redelivered
from pgbeat.webhooks.formats import FORMATS, check_key, is_signed
from pgbeat.webhooks.http import check_url
from pgbeat.webhooks.model import EVENTS, SLOTS, Webhook
from pgbeat.webhooks.signing import check_secret, new_secret

# Hours for which the previous secret signs as well.
_OLD_SECRET_HOURS = 24
# Names, or globs of names, that a filter may have.
_MOST_GLOBS = 50


def add(
    unit: UnitOfWork,
    name: str,
    url: str,
    events: Sequence[str],
    *,
    format: str = "standard",
    secret: str | None = None,
    per_incident: bool | None = None,
    labels: Mapping[str, str] | None = None,
    schedules: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
) -> tuple[Webhook, str]:
    """Adds a webhook for these events, or for `all`.

    `secret` signs events, and is random by default; with another `format` it is the receiver's key.
    With `per_incident`, it gets failures of one incident at growing intervals, and its end;
    otherwise each failure. By default, other formats than the standard one do. `labels`, and globs
    of names of `schedules` and `tasks`, limit the events to those of what has them.

    Returns it and its secret, which can't be read again. Raises `InvalidJob` or `AlreadyExists`.
    """
    problems, events = Problems(), expand(events)
    unfit = name_problem(name)
    if unfit:
        problems.add("name", "malformed", unfit)
    problems += check_url(url, private=unit.settings.webhook_private)
    problems += [*check_events(events), *_check_format(format, secret)]
    filters = _given(labels=labels, schedules=schedules, tasks=tasks)
    problems += check_filters(filters)
    problems.raise_if_any(InvalidJob, subject=f"webhook {name!r}")
    secret = secret or new_secret()
    statement = (
        insert(table)
        .on_conflict_do_nothing()
        .values(
            namespace=unit.namespace,
            name=name,
            url=url,
            secret=secret,
            events=in_order(events),
            format=format,
            per_incident=groups(format) if per_incident is None else per_incident,
            slots=SLOTS,
            created_by=unit.actor.name,
            **filters,
        )
    )
    added = unit.connection.execute(statement.returning(*webhooks.COLUMNS)).one_or_none()
    if added is None:
        raise AlreadyExists(
            f"there is a webhook {name!r} already; change it with `pgbeat webhooks update`"
        )
    row = Webhook(*added)
    unit.record("create", None, row)
    return row, secret


def read_changes(
    url: str | None = None,
    events: Sequence[str] | None = None,
    secret: str | None = None,
    *,
    renew_secret: bool = False,
    **others: Any,
) -> dict[str, Any]:
    """Returns the changes, for `edit`, that people ask for. Raises `InvalidJob`."""
    if renew_secret and secret is not None:
        message = "secret and new_secret exclude each other"
        raise InvalidJob.of("new_secret", "conflict", message)
    secret = new_secret() if renew_secret else secret
    changes = _given(url=url, events=events, secret=secret, **others)
    if not changes:
        message = "there is nothing to change; give url, events, secret, new_secret or a filter"
        raise InvalidJob.of("", "required", message)
    return changes


def edit(
    unit: UnitOfWork,
    name: str,
    *,
    url: str | None = None,
    events: Sequence[str] | None = None,
    secret: str | None = None,
    per_incident: bool | None = None,
    labels: Mapping[str, str] | None = None,
    schedules: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
) -> Webhook:
    """Changes what is given; an empty filter is none.

    After a new secret, the previous one signs as well for a day.

    Formats can't be changed: their receivers have other addresses.

    Raises `InvalidJob` or `NotFound`.
    """
    before = _lock(unit, name)
    problems = Problems()
    values = _given(labels=labels, schedules=schedules, tasks=tasks)
    problems += check_filters(values)
    values |= _given(per_incident=per_incident)
    if url is not None:
        problems += check_url(url, private=unit.settings.webhook_private)
        values["url"] = url
    if events is not None:
        events = expand(events)
        problems += check_events(events)
        values["events"] = in_order(events)
    if secret is not None:
        problems += check_key_or_secret(before.format, secret)
        values["secret"] = secret
        if is_signed(before.format):
            until = func.now() + func.make_interval(0, 0, 0, 0, _OLD_SECRET_HOURS)
            values |= {"previous_secret": table.c.secret, "previous_until": until}
    problems.raise_if_any(InvalidJob, subject=f"webhook {name!r}")
    row = _update(unit, name, values)
    unit.record("update", before, row)
    return row


def _lock(unit: UnitOfWork, name: str) -> Webhook:
    return webhooks.get(unit.connection, name, namespace=unit.namespace, for_update=True)


def _update(unit: UnitOfWork, name: str, values: dict[str, Any]) -> Webhook:
    statement = update(table).where(webhooks.is_webhook(name, unit.namespace))
    statement = statement.values(**values, updated_at=func.now())
    return Webhook(*unit.connection.execute(statement.returning(*webhooks.COLUMNS)).one())


def _check_format(format: str, secret: str | None) -> list[Problem]:
    if format in FORMATS:
        return check_key_or_secret(format, secret)
    hint = did_you_mean(format, FORMATS) or f"there are {', '.join(FORMATS)}"
    return [Problem("format", "unknown", f"format: there is no format {format!r}; {hint}")]


def check_key_or_secret(format: str, secret: str | None) -> list[Problem]:
    """Returns what is wrong with the secret of a new webhook. The messages don't repeat it."""
    if not is_signed(format):
        return check_key(format, secret)
    return [] if secret is None else check_secret(secret)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def groups(format: str) -> bool:
    """Returns whether a webhook of this format gets alerts `per_incident`, unless it says so."""
    return not is_signed(format)


def check_filters(filters: Mapping[str, Any]) -> Iterator[Problem]:
    """Yields what is wrong with labels, and with globs of names."""
    wrong = labels_problem(filters.get("labels", {}))
    if wrong is not None:
        yield Problem("labels", "malformed", f"labels {wrong}")
    for field in ("schedules", "tasks"):
        globs = filters.get(field, ())
        if len(globs) > _MOST_GLOBS:
            message = f"{field}: there are {len(globs)} names; there may be {_MOST_GLOBS}"
            yield Problem(field, "out_of_range", message)
        for glob in globs:
            if not glob.isprintable() or not 1 <= len(glob) <= 255:
                message = f"{field}: {glob!r} is not a name, or a glob such as nightly-*"
                yield Problem(field, "malformed", message)


def expand(events: Sequence[str]) -> Sequence[str]:
    """Returns the events that are meant: `all` is every one."""
    return EVENTS if tuple(events) == ("all",) else events


def check_events(events: Sequence[str]) -> Problems:
    """Returns what is wrong with a webhook's events."""
    problems = Problems()
    if not events:
        problems.add("events", "required", f"events: name one or more of {', '.join(EVENTS)}")
    for event in dict.fromkeys(events):
        if event not in EVENTS:
            hint = did_you_mean(event, EVENTS) or f"there are {', '.join(EVENTS)}"
            problems.add("events", "unknown", f"events: there is no event {event!r}; {hint}")
    return problems


def in_order(events: Collection[str]) -> list[str]:
    """Returns the events in the order in which webhooks have them, each once."""
    return [event for event in EVENTS if event in events]


def remove(unit: UnitOfWork, name: str) -> Webhook:
    """Deletes a webhook with its deliveries, and returns what it was. Raises `NotFound`."""
    before = _lock(unit, name)
    unit.connection.execute(table.delete().where(webhooks.is_webhook(name, unit.namespace)))
    unit.record("delete", before, None)
    return before


def left_open(row: Webhook, changes: Mapping[str, Any] | None = None) -> str:
    """Returns in words which alerts stay open at a receiver after changes, or the deletion.

    Empty if none do: the receiver is the same, and is told of the end of incidents.
    """
    if changes is not None and not (
        "url" in changes
        or ("secret" in changes and not is_signed(row.format))
        or changes.get("per_incident") is False
    ):
        return ""
    number = row.open_incidents
    incidents = f"{number:,} incident{'s' if number > 1 else ''}"
    return f"without telling its receiver of the end of {incidents}" if number else ""


def enable(unit: UnitOfWork, name: str) -> tuple[Webhook, bool]:
    """Enables a webhook. Returns it, and whether it was disabled. Raises `NotFound`."""
    before = _lock(unit, name)
    if before.enabled:
        return before, False
    row = _update(unit, name, {"enabled": True, "disabled_reason": None, "slots": SLOTS})
    unit.record("enable", before, row)
    return row, True


def disable(unit: UnitOfWork, name: str, reason: str | None = None) -> tuple[Webhook, bool]:
    """Disables a webhook: its pending deliveries fail.

    Returns it, and whether it was enabled. Raises `NotFound`.
    """
    before = _lock(unit, name)
    why = f"disabled by {unit.actor.name}" + (f": {reason}" if reason else "")
    was_enabled = webhooks.disable(unit.connection, before.id, why)
    row = webhooks.get(unit.connection, name, namespace=unit.namespace)
    unit.record("disable", before, row)
    return row, was_enabled


def redeliver(unit: UnitOfWork, ids: Collection[UUID], *, webhook: str | None = None) -> int:
    """Repeats deliveries that were delivered or failed, and returns how many.

    Raises `NotFound`, also if one is not of the `webhook`, and `InvalidJob`.
    """
    if webhook is not None:
        webhooks.get(unit.connection, webhook, namespace=unit.namespace)
    repeated = deliveries.redeliver(
        unit.connection, ids, by=unit.actor.name, namespace=unit.namespace, webhook=webhook
    )
    for name, delivery_ids in repeated.items():
        unit.record("redeliver", None, Redelivered(name, len(delivery_ids), delivery_ids))
    return sum(map(len, repeated.values()))


def redeliver_failed(unit: UnitOfWork, name: str) -> int:
    """Repeats all failed deliveries of a webhook, and returns how many.

    Raises `NotFound` and `InvalidJob`.
    """
    count = deliveries.redeliver_failed(
        unit.connection, name, by=unit.actor.name, namespace=unit.namespace
    )
    if count:
        unit.record("redeliver", None, Redelivered(name, count))
    return count


def begin_test(unit: UnitOfWork, name: str) -> tuple[Webhook, tuple[str, ...]]:
    """Records a test of a webhook. Raises `NotFound`.

    Returns the webhook with the secrets to sign with, for `outbox.send_test` after the commit.
    """
    row = webhooks.get(unit.connection, name, namespace=unit.namespace)
    unit.record_action("test", "webhook", name, None, {"url": row.url})
    return row, outbox.secrets(unit.connection, row.id)
