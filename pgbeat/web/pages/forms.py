"""Forms: what pages ask people for, what they wrote as the API takes it, and what is wrong with
that, by the field that it is said beside."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from fastapi import Request
from pydantic import ValidationError
from sqlalchemy.exc import DBAPIError

from pgbeat.errors import AlreadyExists, InvalidInput, InvalidJob, NotFound, PgbeatError, Problem
from pgbeat.timetables import span
from pgbeat.web.api.steering import plain
from pgbeat.web.pages.render import said_of
from pgbeat.web.problems import problems_of

Kind = Literal["text", "long", "json", "number", "length", "moment", "choice", "flag", "list"]


class Field(NamedTuple):
    """A field of a form."""

    name: str
    label: str
    kind: Kind = "text"
    hint: str = ""
    options: tuple[str, ...] = ()
    #: Label of a choice that says nothing; `None`: there is none.
    open: str | None = None
    #: What names are offered for it: a key of the page's `offers`.
    offer: str = ""
    is_wide: bool = False


class Section(NamedTuple):
    """Fields that belong together, beneath a title that opens them."""

    title: str
    fields: tuple[Field, ...]
    hint: str = ""
    is_open: bool = False


class Form(NamedTuple):
    """A form: what is written in it, and what is wrong with that."""

    values: Mapping[str, str]
    #: By the field; of none of them: "".
    errors: Mapping[str, str] = {}
    #: As it was when the form was made, for one that changes only what is otherwise.
    before: str = ""


class Mistakes(Exception):
    """Fields that can't be read, and why."""

    def __init__(self, errors: dict[str, str]) -> None:
        self.errors = errors


#: What a form may be refused by.
REFUSED = (ValidationError, Mistakes, PgbeatError, DBAPIError, UnicodeEncodeError, RecursionError)


def all_of(sections: Iterable[Section]) -> tuple[Field, ...]:
    """The fields of sections."""
    return tuple(field for section in sections for field in section.fields)


def given(fields: Iterable[Field], posted: Mapping[str, str]) -> dict[str, str]:
    """What was written into each field."""
    return {each.name: posted.get(each.name, "").replace("\r\n", "\n").strip() for each in fields}


def read(fields: Sequence[Field], written: Mapping[str, str]) -> dict[str, Any]:
    """What was written as JSON of Python's; `None` for an empty field. Only fields of `written`
    are looked at. Raises `Mistakes`."""
    found: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for field in fields:
        if field.name in written:
            try:
                found[field.name] = _read(field.kind, written[field.name])
            except (ValueError, RecursionError) as error:
                errors[field.name] = str(error)
    if errors:
        raise Mistakes(errors)
    return found


def _read(kind: Kind, text: str) -> Any:
    if not text:
        return None
    if kind == "json":
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is no JSON: {error}") from None
        return plain(found)
    if kind == "number":
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise ValueError("it is no integer, such as 3")
        return int(text)
    if kind == "moment":
        return moment(text)
    if kind == "flag":
        return text == "yes"
    if kind == "list":
        return [each.strip() for each in text.split(",") if each.strip()]
    return text


def moment(text: str) -> datetime:
    """A time as it is written into a form: in UTC, unless it says otherwise. Raises
    `ValueError`."""
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("it is no time, such as 2026-12-24T18:00") from None


def text(kind: Kind, value: Any) -> str:
    """A value as it stands in a field."""
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
    names: Collection[str],
    others: Mapping[str, str] | None = None,
) -> tuple[int, dict[str, str]]:
    """Returns the status of what refused a form, and what is wrong by the field to mark.

    `others` has fields of the API that are another one of the form. Raises the error again where
    it isn't the form's: what it is about is gone, or the database.
    """
    if isinstance(error, Mistakes):
        return 422, error.errors
    if isinstance(error, ValidationError):
        found = map(_numbered, problems_of(error.errors(), is_request=False))
        return 422, _by_field(found, names, others)
    status, _, said = said_of(request, error)
    if status >= 500:
        raise error
    if isinstance(error, NotFound) and status == 404:
        status = 422  # what it names
    if isinstance(error, InvalidInput):
        return status, _by_field(error.problems, names, others)
    field = "name" if isinstance(error, AlreadyExists) else getattr(error, "field", "")
    return status, _by_field([Problem(field, "", said)], names, others)


def _numbered(problem: Problem) -> Problem:
    """Returns the problem of one of a list with its number in the message."""
    item = re.search(r"\[(\d+)\]", problem.field)
    if item is None:
        return problem
    return problem._replace(message=f"number {int(item[1]) + 1}: {problem.message}")


def _by_field(
    problems: Iterable[Problem], names: Collection[str], others: Mapping[str, str] | None
) -> dict[str, str]:
    """Returns sentences by the fields of a form; what is in none of its fields by ""."""
    found: dict[str, str] = {}
    for path, _, said in problems:
        field = path
        while field and field not in names and field not in (others or {}):
            inner = f"job_policy.{field}"
            field = inner if inner in names else re.sub(r"(^|\.|\[)[^.\[]*$", "", field)
        field = (others or {}).get(field, field)
        found[field] = f"{found[field]}; {said}" if field in found else said
    return found


def headline(errors: Mapping[str, str], otherwise: str) -> str | None:
    """What the page says of a form that was refused, at its top; `None` of one that was not."""
    if not errors:
        return None
    return errors.get("") or f"{otherwise}: see what is wrong below."


def before(posted: Mapping[str, str]) -> dict[str, Any]:
    """What a form had in its fields when it was made. Raises `InvalidJob`."""
    try:
        found = json.loads(posted.get("before", ""))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidJob("the form is not whole; open the page again")
    return found
