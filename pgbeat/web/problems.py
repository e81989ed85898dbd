"""Errors as problem documents (RFC 9457): what is wrong, and what would be right."""

import logging
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from itertools import islice
from typing import Any

import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.routing import Match, Mount

from pgbeat import errors
from pgbeat.database import connections
from pgbeat.errors import (
    AlreadyExists,
    BrokerUnavailable,
    Busy,
    ConditionError,
    ConfigError,
    Forbidden,
    InvalidInput,
    InvalidToken,
    InvalidTransition,
    NoSlot,
    NotFound,
    NotUnique,
    PgbeatError,
    QueueLocked,
    SchemaError,
)
from pgbeat.web.guards import HEADERS
from pgbeat.web.issuer import IssuerAway

logger = logging.getLogger("pgbeat.web")

MEDIA_TYPE = "application/problem+json"

#: The status of an error; a class counts for those derived from it that are not named.
STATUS: dict[type[Exception], int] = {
    InvalidToken: 401,
    Forbidden: 403,
    NotFound: 404,
    AlreadyExists: 409,
    InvalidTransition: 409,
    NotUnique: 409,
    Busy: 409,
    QueueLocked: 409,
    InvalidInput: 422,
    ConditionError: 422,
    ConfigError: 500,
    SchemaError: 503,
    NoSlot: 503,
    BrokerUnavailable: 503,
    PgbeatError: 400,
}
#: Codes of answers that no error of ours is behind.
_OF_STATUS = {
    400: "bad_request", 401: "invalid_token", 403: "forbidden", 404: "not_found",
    405: "method_not_allowed", 413: "too_large", 422: "invalid", 500: "internal_error",
}  # fmt: skip
#: Problems of one answer, at most.
MOST_PROBLEMS = 50
#: SQLSTATEs of what a missing or another schema looks like: no schema, table, column, function.
_OTHER_SCHEMA = {"3F000", "42P01", "42703", "42883"}


class FieldProblem(BaseModel):
    """One thing that is wrong with a request."""

    field: str = Field(
        examples=["cron", "job_policy.lane", "kwargs.days[0]"],
        description="The path of the field at fault; empty for the request as a whole.",
    )
    code: str = Field(
        examples=["malformed"],
        description="What is wrong, for programs; it stays the same when the message is reworded.",
    )
    message: str = Field(examples=["must be a string"], description="What is wrong, for people.")

    @classmethod
    def of(cls, problem: errors.Problem) -> "FieldProblem":
        """Returns a problem as it can be sent."""
        field, code, message = problem
        return cls(field=readable(field)[:200], code=code, message=readable(message))


class Problem(BaseModel):
    """What is wrong, by RFC 9457."""

    type: str = Field("about:blank", examples=["about:blank"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    code: str = Field(
        examples=["not_found"],
        description="What kind of error it is, for programs; it stays the same when `detail` is "
        "reworded.",
    )
    detail: str = Field(examples=["there is no schedule 'refresh'; did you mean 'refresh_all'?"])
    instance: str | None = Field(None, examples=["/admin/scheduled-jobs/refresh"])
    errors: list[FieldProblem] | None = Field(
        default=None, description="What is wrong with the request, field by field."
    )


#: For OpenAPI: what an endpoint may answer beside what it is for.
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": said}
    for status, said in {
        400: "The body can't be read.",
        401: "It isn't known who asks: no token or JWT, or one that is no longer good.",
        403: "The caller may not do that.",
        404: "There is nothing of that name.",
        409: "Its state doesn't allow that, it is there already, or it is just being changed.",
        413: "The request has more than 1 MB.",
        422: "Something of the request is not well formed; `errors` lists what.",
        503: "The database, or what else it takes, can't be had just now.",
    }.items()
}


def problem(
    request: Request,
    status: int,
    detail: str,
    *,
    code: str | None = None,
    problems: Iterable[errors.Problem] = (),
    headers: dict[str, str] | None = None,
) -> Response:
    """Returns the answer of that status. Its code is that of the status, unless it is given."""
    found = Problem(
        type="about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        code=code or _OF_STATUS.get(status, "error"),
        detail=readable(detail),
        instance=readable(request.url.path),
        errors=[FieldProblem.of(each) for each in islice(problems, MOST_PROBLEMS)] or None,
    )
    content = found.model_dump(exclude_none=True)
    return JSONResponse(content, status, media_type=MEDIA_TYPE, headers=headers)


def readable(words: str) -> str:
    """What of a text can be sent: half a character can't."""
    return words.encode(errors="replace").decode()


def status_of(error: Exception) -> int:
    """The status that an error of ours means."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def install(app: FastAPI) -> None:
    """Has the app answer errors so."""
    app.add_exception_handler(PgbeatError, _ours)
    app.add_exception_handler(IssuerAway, _away)
    app.add_exception_handler(BrokerUnavailable, _broker)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    for lost in (DBAPIError, psycopg.Error, PoolTimeout):
        app.add_exception_handler(lost, _database)
    for unfit in (UnicodeEncodeError, RecursionError):
        app.add_exception_handler(unfit, _unfit)
    app.add_exception_handler(Exception, _unexpected)


def _ours(request: Request, error: Exception) -> Response:
    status = status_of(error)
    headers = {"WWW-Authenticate": 'Bearer realm="pgbeat"'} if status == 401 else None
    code = getattr(error, "code", None)
    problems = error.problems if isinstance(error, InvalidInput) and status < 500 else ()
    return problem(request, status, str(error), code=code, problems=problems, headers=headers)


def _away(request: Request, error: Exception) -> Response:
    return problem(request, 503, str(error), code="issuer_unavailable")


def _broker(request: Request, error: Exception) -> Response:
    logger.warning("%s", error)
    return problem(request, 503, "the broker can't be reached just now", code="broker_unavailable")


def _invalid(request: Request, error: Exception) -> Response:
    found = [
        each._replace(message=f"{each.field}: {each.message}") if each.field else each
        for each in problems_of(error.errors() if isinstance(error, RequestValidationError) else ())
    ]
    said = "; ".join(each.message for each in found[:5])
    return problem(
        request, 422, said or "the request can't be understood", code="invalid", problems=found
    )


def problems_of(found: Iterable[Any], *, is_request: bool = True) -> Iterator[errors.Problem]:
    """Yields what pydantic has found wrong with a request, or with a model."""
    for each in found:
        path = ""
        for part in each["loc"][1 if is_request else 0 :]:
            path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
        context = each.get("ctx", {})
        code = _CODES.get(each["type"], "malformed")
        cause = context.get("error")
        said = str(cause if isinstance(cause, Exception) else each["msg"])
        yield errors.Problem(context.get("field", ""), code, said).within(path)


#: Codes of ours for those of pydantic; others are `malformed`.
_CODES = {
    "missing": "required",
    "unknown_field": "unknown_field",
    **dict.fromkeys(
        ("greater_than", "greater_than_equal", "less_than", "less_than_equal"), "out_of_range"
    ),
    **dict.fromkeys(("string_too_long", "too_long"), "too_long"),
    **dict.fromkeys(("string_too_short", "too_short"), "too_short"),
    **dict.fromkeys(("enum", "literal_error"), "unknown"),
}


def _http(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):  # never
        raise error
    detail = str(error.detail)
    if error.status_code == 404 and detail == "Not Found":
        detail = "there is nothing at this path; /docs lists what there is"
    headers = dict(error.headers) if error.headers else None
    if error.status_code == 405:
        allowed = _allowed(request)
        headers = {"Allow": allowed}
        detail = f"{request.method} is not what this path takes; it takes {allowed}"
    return problem(request, error.status_code, detail, headers=headers)


def _allowed(request: Request) -> str:
    """The methods of all routes of the path: the router names those of the first, files none."""
    routes = [each for each in request.app.router.routes if not isinstance(each, Mount)]
    found = [
        method
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
        if any(
            each.matches({**request.scope, "method": method})[0] is Match.FULL for each in routes
        )
    ] or ["GET"]
    return ", ".join(["HEAD", *found] if "GET" in found else found)


def _database(request: Request, error: Exception) -> Response:
    cause = getattr(error, "orig", None) or error
    state = getattr(cause, "sqlstate", None) or ""
    if state[:2] in {"22", "23"} or isinstance(cause, psycopg.DataError):
        return problem(request, 422, connections.first_line(error), code="invalid")
    if state == "55P03":
        return problem(request, 409, "somebody else is just changing that; try again", code="busy")
    if state in {"40001", "40P01"}:
        said = "somebody else changed that at the same time; try again"
        return problem(request, 409, said, code="busy")
    if state == "57014":
        return problem(request, 503, "the database took too long; ask for less", code="timeout")
    if isinstance(error, PoolTimeout) or connections.is_lost(error):
        logger.warning("The database can't be had: %s", connections.first_line(error))
        said = "the database can't be had just now"
        return problem(request, 503, said, code="database_unavailable")
    logger.error("The database refused a statement", exc_info=error)
    if state in _OTHER_SCHEMA:
        said = "the database has no pgbeat schema, or another; run `pgbeat migrate`"
        return problem(request, 503, said, code=SchemaError.code)
    return problem(request, 500, "the database refused; the log says why")


def _unfit(request: Request, error: Exception) -> Response:
    logger.info("A request that can't be worked with", exc_info=error)
    said = "nested too deeply" if isinstance(error, RecursionError) else "not valid Unicode"
    return problem(request, 422, f"something in the request is {said}", code="invalid")


def _unexpected(request: Request, error: Exception) -> Response:
    # Answered outside of all middleware.
    return problem(request, 500, "that went wrong; the log says why", headers=HEADERS)
