"""Forms: their fields, what people wrote into them as the API takes it, and their mistakes."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, NamedTuple

from fastapi import Request
from pydantic import ValidationError
from sqlalchemy.exc import DBAPIError

from pgbeat.errors import AlreadyExists, InvalidInput, InvalidJob, NotFound, PgbeatError, Problem
from pgbeat.timetables import span
from pgbeat.web import problems
from pgbeat.web.api.bodies import plain

Kind = Literal["text", "long", "json", "number", "length", "moment", "choice", "flag", "list"]


class FormField(NamedTuple):
    """A field of a form."""

    name: str
    label: str
    kind: Kind = "text"
    hint: str = ""
    options: tuple[str, ...] = ()
    #: The label of a choice without a value; `None` if one of the options must be chosen.
    open: str | None = None
    #: The key of the names that the page offers for it.
    offer: str = ""
    is_wide: bool = False


#: Makes a field that takes the whole width of the form.
wide = partial(FormField, is_wide=True)


def choice(name: str, label: str, options: Iterable[str], hint: str = "") -> FormField:
    """Returns a field with one of several words."""
    return FormField(name, label, "choice", hint, tuple(options))


class FormSection(NamedTuple):
    """Fields below a title that opens them."""

    title: str
    fields: tuple[FormField, ...]
    hint: str = ""
    is_open: bool = False


class Form(NamedTuple):
    """A form as it is shown: the values of its fields, and its mistakes once it was refused."""

    values: Mapping[str, str]
    #: Messages by field; by "" for the form as a whole.
    errors: Mapping[str, str] = {}
    #: The values at first, as JSON, for a form that only changes what differs from them.
    before: str = ""
    #: The response's status and alert.
    status: int = 200
    alert: str = ""


class Mistakes(Exception):
    """Fields that can't be read, and why."""

    def __init__(self, errors: dict[str, str]) -> None:
        self.errors = errors


#: Errors that refuse a form.
REFUSED = (ValidationError, Mistakes, PgbeatError, DBAPIError, UnicodeEncodeError, RecursionError)


def all_of(sections: Iterable[FormSection]) -> tuple[FormField, ...]:
    """Returns the fields of all sections."""
    return tuple(field for section in sections for field in section.fields)


def original(values: Mapping[str, Any]) -> Form:
    """Returns the form of a thing as it is, which changes only what will differ."""
    return Form(values, before=json.dumps(values))


def read(fields: Sequence[FormField], written: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values of the fields in `written`; `None` for an empty one. Raises `Mistakes`."""
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for field in fields:
        if field.name in written:
            try:
                values[field.name] = _read(field.kind, written[field.name])
            except (ValueError, RecursionError) as error:
                errors[field.name] = str(error)
    if errors:
        raise Mistakes(errors)
    return values


def _read(kind: Kind, text: str) -> Any:
    if not text:
        return None
    if kind == "json":
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"invalid JSON: {error}") from None
        return plain(value)
    if kind == "number":
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise ValueError("must be an integer, such as 3")
        return int(text)
    if kind == "moment":
        return moment(text)
    if kind == "flag":
        return text == "yes"
    if kind == "list":
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def natural(text: str, most: int = 2**63 - 1) -> int | None:
    """Parses a number of at most `most`, written in digits; returns None for any other text."""
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) > most:
        return None
    return int(text)


def moment(text: str) -> datetime:
    """Parses a time, which is in UTC unless it has an offset. Raises `ValueError`."""
    try:
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("must be a time, such as 2026-12-24T18:00") from None


def text(kind: Kind, value: Any) -> str:
    """Returns a value as the text of a field."""
    if value is None:
        return ""
    if kind == "json":
        return json.dumps(value, ensure_ascii=False) if value else ""
    if kind == "flag":
        return "yes" if value else "no"
    if kind == "list":
        return ", ".join(value)
    if isinstance(value, timedelta):
        return span(value, units=4) if value else ""
    if isinstance(value, datetime):
        utc = value.astimezone(UTC).replace(tzinfo=None)
        if kind == "moment":
            # As browsers write it.
            return utc.isoformat(timespec="seconds" if utc.second else "minutes")
        return utc.isoformat() + "Z"
    return str(value)


def refused(
    request: Request,
    error: Exception,
    written: Mapping[str, str],
    nothing: str,
    *,
    before: str = "",
    fields: Collection[str] = (),
    others: Mapping[str, str] | None = None,
) -> Form:
    """Returns the form that an error refused, with the mistakes beside its fields.

    `nothing` says in the alert that nothing happened. `fields` are further names beside those of
    `written`, and `others` leads from fields of the API to a field of another name. Raises the
    error again if it is about something else: the database, or the thing itself.
    """
    status, errors = _mistakes(request, error, {*written, *fields}, others or {})
    alert = errors.get("") or f"{nothing}: see what is wrong below."
    return Form(written, errors, before, status, alert)


def _mistakes(
    request: Request, error: Exception, names: Collection[str], others: Mapping[str, str]
) -> tuple[int, Mapping[str, str]]:
    if isinstance(error, Mistakes):
        return 422, error.errors
    if isinstance(error, ValidationError):
        mistakes = map(_numbered, problems.of_pydantic(error.errors(), is_request=False))
        return 422, _by_field(mistakes, names, others)
    status, _, detail = problems.described(request, error)
    if status >= 500:
        raise error
    if isinstance(error, NotFound):
        status = 422  # the form names something that isn't there
    if isinstance(error, InvalidInput):
        return status, _by_field(error.problems, names, others)
    field = "name" if isinstance(error, AlreadyExists) else getattr(error, "field", "")
    return status, _by_field([Problem(field, "", detail)], names, others)


def _numbered(problem: Problem) -> Problem:
    """Adds the number of a list's item to the message of its problem."""
    item = re.search(r"\[(\d+)\]", problem.field)
    if item is None:
        return problem
    return problem._replace(message=f"number {int(item[1]) + 1}: {problem.message}")


def _by_field(
    mistakes: Iterable[Problem], names: Collection[str], others: Mapping[str, str]
) -> dict[str, str]:
    """Returns messages by field of the form; by "" if the problem is in none of its fields."""
    errors: dict[str, str] = {}
    for path, _, message in mistakes:
        field = path
        while field and field not in names and field not in others:
            inner = f"job_policy.{field}"
            field = inner if inner in names else re.sub(r"(^|\.|\[)[^.\[]*$", "", field)
        field = others.get(field, field)
        errors[field] = f"{errors[field]}; {message}" if field in errors else message
    return errors


def before(posted: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values that the form was made with. Raises `InvalidJob`."""
    try:
        values = json.loads(posted.get("before", ""))
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise InvalidJob("the form is incomplete; open the page again")
    return values
