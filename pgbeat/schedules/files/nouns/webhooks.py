"""Webhooks in files. Secrets are never in a file: it names variables of the environment.

A variable that isn't set leaves the secret as it is, so that a plan needs no secrets. Only a new
webhook needs them.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar
from zlib import crc32

from sqlalchemy import ColumnElement, Connection

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database.tables import webhooks as table
from pgbeat.errors import InvalidJob, Problem, Problems
from pgbeat.schedules.files.definitions import Definition
from pgbeat.schedules.files.fields import FileField
from pgbeat.schedules.files.kinds import Choice, Labels, ListOf, Switch, Text
from pgbeat.schedules.files.nouns.noun import OTHER, FileNoun, Plain, Stored
from pgbeat.webhooks import control, outbox
from pgbeat.webhooks import model as webhooks
from pgbeat.webhooks.formats import FORMATS, WITH_SECRET, is_signed
from pgbeat.webhooks.http import check_url
from pgbeat.webhooks.model import EVENTS, Webhook

_GLOBS = ListOf(Text("nightly-*", 255))
_FIELDS = (
    FileField("url", Text("https://hooks.example.com/pgbeat", 2000), "Where events go."),
    FileField(
        "url_env", Text("ROOM_URL", 200), "The environment variable that has the URL, instead."
    ),
    FileField("events", ListOf(Text("job.failed")), f"{', '.join(EVENTS)}; or all."),
    FileField("format", Choice(FORMATS), "What is sent.", "standard"),
    FileField(
        "secret_env", Text("PAGER_SECRET", 200),
        "The environment variable that has the secret; by default a random one is made.",
    ),
    FileField(
        "per_incident", Switch(),
        "Whether failures come once per incident; by default all but the standard format do.",
    ),
    FileField("labels", Labels(), "Only events of what has all these.", {}),
    FileField("schedules", _GLOBS, "Only events of these schedules: names or globs.", []),
    FileField("tasks", _GLOBS, "Only events of these tasks: names or globs.", []),
    FileField("enabled", Switch(), "Whether events are sent.", True),
)  # fmt: skip
#: What limits the events.
_FILTERS = ("labels", "schedules", "tasks")


class _Webhooks(FileNoun):
    """Webhooks, whose URLs may lie in a private network if they are `private`."""

    section, name = "webhooks", "webhook"
    fields: ClassVar = {field.name: field for field in _FIELDS}
    table, columns, row = table, webhooks.COLUMNS, Webhook

    def __init__(self, environ: Mapping[str, str], *, private: bool) -> None:
        self._environ, self._private = environ, private

    @property
    def which(self) -> tuple[ColumnElement[bool], ...]:
        return (table.c.schedule_id.is_(None),)

    def _secret(self, values: Mapping[str, Any]) -> str | None:
        return self._environ.get(values["secret_env"] or "") or None

    def _url(self, values: Mapping[str, Any]) -> str | None:
        return values["url"] or self._environ.get(values["url_env"] or "") or None

    def check(self, name: str, given: Plain) -> dict[str, Any]:
        values = self.defaults() | given
        problems = Problems(self._problems(values))
        events = control.expand(values["events"] or ())
        problems += control.check_events(events)
        problems += control.check_filters(values)
        problems.raise_if_any(InvalidJob)
        is_grouped = _if_unusual(values["per_incident"], values["format"])
        events = _events(control.in_order(events))
        return values | {"events": events, "per_incident": is_grouped}

    def _problems(self, values: Mapping[str, Any]) -> Iterator[Problem]:
        url, secret = self._url(values), self._secret(values)
        if values["url"] and values["url_env"]:
            yield Problem("url_env", "conflict", "url and url_env exclude each other; keep one")
        elif not values["url"] and not values["url_env"]:
            message = "url is missing; set it, or url_env to the variable that has it"
            yield Problem("url", "required", message)
        elif url is not None:
            for problem in check_url(url, private=self._private):
                yield problem._replace(field="url" if values["url"] else "url_env")
        is_unknown = values["secret_env"] is not None and secret is None
        if is_unknown and values["format"] in WITH_SECRET:
            return
        for problem in control.check_key_or_secret(
            values["format"], secret or values["secret_env"]
        ):
            advice = "; name the environment variable that has it: secret_env"
            hint = advice if problem.code == "required" else ""
            yield problem._replace(field="secret_env", message=problem.message + hint)

    def refusals(self, definition: Definition, stored: Stored | None) -> Iterator[tuple[str, str]]:
        values = definition.values
        if stored is not None:
            if stored.row.format != values["format"]:
                yield (
                    "format",
                    f"format is {stored.row.format} and can't become {values['format']}; "
                    "declare another webhook",
                )
            return
        for field in ("url_env", "secret_env"):
            variable = values[field]
            if variable is not None and not self._environ.get(variable):
                yield (
                    field,
                    f"{field}: the environment has no {variable}; a new webhook needs it, set it",
                )

    def remark(self, definition: Definition, *, is_new: bool) -> str | None:
        name, values = definition.name, definition.values
        if is_new and is_signed(values["format"]) and values["secret_env"] is None:
            return (
                f"webhook {name!r} gets a random secret; "
                f"`pgbeat webhooks update {name} --new-secret` makes one that it shows"
            )
        named = (values["url_env"], values["secret_env"])
        unset = [name for name in named if name is not None and not self._environ.get(name)]
        if unset:
            return (
                f"webhook {name!r} keeps its own; the environment has no {' and no '.join(unset)}"
            )
        return None

    def left_open(self, stored: Stored, changes: Mapping[str, Any] | None) -> str:
        if changes is not None:
            changes = {field.removesuffix("_env"): value for field, value in changes.items()}
        return control.left_open(stored.row, changes)

    def values(self, stored: Stored) -> dict[str, Any]:
        row, base = stored.row, stored.base or {}
        url_env, secret_env = base.get("url_env"), base.get("secret_env")
        if row.format not in WITH_SECRET:
            url_env = url_env or _variable(row.name, "URL")
        elif not is_signed(row.format):
            secret_env = secret_env or _variable(row.name, "KEY")
        return {
            "url": None if url_env else row.url,
            "url_env": url_env,
            "events": _events(row.events),
            "format": row.format,
            "secret_env": secret_env,
            "per_incident": _if_unusual(row.per_incident, row.format),
            **{field: getattr(row, field) for field in _FILTERS},
            "enabled": row.enabled,
        }

    def compared(
        self, connection: Connection, stored: Stored, wanted: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Returns a row's values, with variables that the file names if they have what the row has.

        One that failures or people disabled stays so, unless an earlier file did it.
        """
        row, base = stored.row, stored.base or {}
        values = self.values(stored) | {"url": row.url, "url_env": None, "secret_env": None}
        url, secret = self._url(wanted), self._secret(wanted)
        if wanted["url_env"] is not None:
            values["url"] = None
            values["url_env"] = wanted["url_env"] if url in (None, row.url) else OTHER
        if wanted["secret_env"] is not None:
            is_same = secret is None or outbox.has_secret(connection, row.id, secret)
            values["secret_env"] = wanted["secret_env"] if is_same else OTHER
        if wanted["enabled"] and base.get("enabled") is not False:
            values["enabled"] = True
        return values

    def write(
        self, unit: UnitOfWork, name: str, values: Mapping[str, Any], changed: set[str] | None
    ) -> None:
        url, secret = self._url(values), self._secret(values)
        others = {field: values[field] for field in ("events", *_FILTERS)}
        others["per_incident"] = (
            control.groups(values["format"])
            if values["per_incident"] is None
            else values["per_incident"]
        )
        if changed is None:
            control.add(unit, name, str(url), format=values["format"], secret=secret, **others)
        elif changed != {"enabled"}:
            control.edit(
                unit,
                name,
                url=url if changed & {"url", "url_env"} else None,
                secret=secret if "secret_env" in changed else None,
                **{field: value for field, value in others.items() if field in changed},
            )
        if not values["enabled"]:
            control.disable(unit, name, "its file says so")
        elif changed is not None and "enabled" in changed:
            control.enable(unit, name)

    def remove(self, unit: UnitOfWork, name: str) -> None:
        control.remove(unit, name)


def webhooks_in(environ: Mapping[str, str], *, private: bool) -> FileNoun:
    """Returns webhooks, whose secrets are in the variables of an environment.

    With `private`, their URLs may lie in a private network.
    """
    return _Webhooks(environ, private=private)


def _if_unusual(per_incident: bool | None, format: str) -> bool | None:
    return None if per_incident == control.groups(format) else per_incident


def _events(events: list[str]) -> list[str]:
    return ["all"] if len(events) == len(EVENTS) else list(events)


def _variable(name: str, suffix: str) -> str:
    """Returns the variable that an export proposes for a webhook's secret: no other webhook's."""
    words = re.findall("[A-Za-z0-9]+", name)
    if "-".join(words).lower() != name:
        words.append(f"{crc32(name.encode()):08x}")
    return "_".join(["WEBHOOK", *words, suffix]).upper()
