"""Errors as problem documents (RFC 9457): what is wrong, and what would be right."""

import logging
from http import HTTPStatus
from typing import Any

import kombu.exceptions
import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.routing import Match, Mount

from pgbeat.database import connections
from pgbeat.errors import (
    AlreadyExists,
    Busy,
    ConditionError,
    ConfigError,
    Forbidden,
    InvalidJob,
    InvalidPlaceholder,
    InvalidSchedule,
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
    InvalidSchedule: 422,
    InvalidJob: 422,
    ConditionError: 422,
    ConfigError: 500,
    SchemaError: 503,
    NoSlot: 503,
    PgbeatError: 400,
}
#: SQLSTATEs of what a missing or another schema looks like: no schema, table, column, function.
_OTHER_SCHEMA = {"3F000", "42P01", "42703", "42883"}


class Mistake(BaseModel):
    """One thing that is wrong with a request."""

    where: str = Field(examples=["body.cron"])
    detail: str = Field(examples=["Input should be a valid string"])


class Problem(BaseModel):
    """What is wrong, by RFC 9457."""

    type: str = Field("about:blank", examples=["about:blank"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["there is no schedule 'refresh'; did you mean 'refresh_all'?"])
    instance: str | None = Field(None, examples=["/admin/scheduled-jobs/refresh"])
    errors: list[Mistake] | None = None


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
        422: "Something of the request is not well formed; `errors` may list what.",
        503: "The database, or what else it takes, can't be had just now.",
    }.items()
}


def problem(
    request: Request,
    status: int,
    detail: str,
    *,
    errors: list[Mistake] | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """The answer that says so."""
    found = Problem(
        type="about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=readable(detail),
        instance=readable(request.url.path),
        errors=errors,
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
    app.add_exception_handler(kombu.exceptions.OperationalError, _broker)
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
    # What the command line has for it.
    said = str(error).replace(" (--admin)", "")
    errors = None
    if isinstance(error, InvalidPlaceholder):
        errors = [Mistake(where=f"body.{place}", detail=why) for place, why in error.mistakes]
    return problem(request, status, said, errors=errors, headers=headers)


def _away(request: Request, error: Exception) -> Response:
    return problem(request, 503, str(error))


def _broker(request: Request, error: Exception) -> Response:
    logger.warning("The broker can't be had: %s", connections.first_line(error))
    return problem(request, 503, "the broker can't be had just now")


def _invalid(request: Request, error: Exception) -> Response:
    found = error.errors() if isinstance(error, RequestValidationError) else []
    mistakes = [
        Mistake(
            where=readable(".".join(map(str, each["loc"])))[:200],
            detail=readable(str(each["msg"]).removeprefix("Value error, ")),
        )
        for each in found[:50]
    ]
    said = "; ".join(f"{each.where}: {each.detail}" for each in mistakes[:5])
    return problem(request, 422, said or "the request can't be understood", errors=mistakes)


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
        return problem(request, 422, connections.first_line(error))
    if state == "55P03":
        return problem(request, 409, "somebody else is just changing that; try again")
    if state in {"40001", "40P01"}:
        return problem(request, 409, "somebody else changed that at the same time; try again")
    if state == "57014":
        return problem(request, 503, "the database took too long; ask for less")
    if isinstance(error, PoolTimeout) or connections.is_lost(error):
        logger.warning("The database can't be had: %s", connections.first_line(error))
        return problem(request, 503, "the database can't be had just now")
    logger.error("The database refused a statement", exc_info=error)
    if state in _OTHER_SCHEMA:
        return problem(
            request, 503, "the database has no pgbeat schema, or another; run `pgbeat migrate`"
        )
    return problem(request, 500, "the database refused; the log says why")


def _unfit(request: Request, error: Exception) -> Response:
    logger.info("A request that can't be worked with", exc_info=error)
    said = "nested too deeply" if isinstance(error, RecursionError) else "not valid Unicode"
    return problem(request, 422, f"something in the request is {said}")


def _unexpected(request: Request, error: Exception) -> Response:
    # Answered outside of all middleware.
    return problem(request, 500, "that went wrong; the log says why", headers=HEADERS)
