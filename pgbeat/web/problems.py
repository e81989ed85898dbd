"""Answers errors with problem documents (RFC 9457)."""

import json
import logging
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from itertools import islice
from math import ceil
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
from pgbeat.database import connections, server_errors
from pgbeat.web.guards import HEADERS
from pgbeat.web.issuer import IssuerAway

logger = logging.getLogger("pgbeat.web")

MEDIA_TYPE = "application/problem+json"

#: Statuses by class of errors, and of classes derived from it.
STATUS: dict[type[Exception], int] = {
    errors.InvalidToken: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.AlreadyExists: 409,
    errors.InvalidTransition: 409,
    errors.NotUnique: 409,
    errors.Busy: 409,
    errors.QueueLocked: 409,
    errors.WorkerRefused: 409,
    errors.TooMany: 429,
    errors.NoReply: 503,
    errors.InvalidInput: 422,
    errors.ConditionError: 422,
    errors.ConfigError: 500,
    errors.SchemaError: 503,
    errors.NoSlot: 503,
    errors.BrokerUnavailable: 503,
    errors.PgbeatError: 400,
}
#: Codes by status, of errors that are not pgbeat's.
_CODES = {
    400: "bad_request",
    401: "invalid_token",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    422: "invalid",
    500: "internal_error",
}
#: Codes by pydantic's type of error; others are `malformed`.
_PYDANTIC_CODES = {
    "missing": "required",
    "unknown_field": "unknown_field",
    "greater_than": "out_of_range",
    "greater_than_equal": "out_of_range",
    "less_than": "out_of_range",
    "less_than_equal": "out_of_range",
    "string_too_long": "too_long",
    "too_long": "too_long",
    "string_too_short": "too_short",
    "too_short": "too_short",
    "enum": "unknown",
    "literal_error": "unknown",
}
#: The most problems in a response.
MOST_PROBLEMS = 50
#: Statuses and details of the database's errors, by their code.
_OF_DATABASE = {
    errors.InvalidInput.code: (422, "{}"),
    errors.Busy.code: (409, "another session is changing that at the same time; try again"),
    errors.Forbidden.code: (403, "pgbeat web's database role may not do that: {}"),
    "timeout": (503, "the database took too long; ask for less"),
    server_errors.UNAVAILABLE: (503, "the database can't be reached now"),
    errors.SchemaError.code: (
        503,
        "the database has no pgbeat schema, or one of another version; run `pgbeat migrate`",
    ),
    "": (500, "the database refused that; the log says why"),
}


class FieldProblem(BaseModel):
    """One problem with a request."""

    field: str = Field(
        examples=["cron", "job_policy.lane", "kwargs.days[0]"],
        description="The path of the field; empty for the request as a whole.",
    )
    code: str = Field(
        examples=["malformed"],
        description="The kind of problem, for programs; it stays when the message is reworded. "
        + "; ".join(f"`{code}`: {about}" for code, about in errors.PROBLEM_CODES.items())
        + "; or that of the response.",
    )
    message: str = Field(examples=["must be a string"], description="The problem, for people.")

    @classmethod
    def of(cls, problem: errors.Problem) -> "FieldProblem":
        """Returns a problem as it can be sent."""
        field, code, message = problem
        return cls(field=readable(field)[:200], code=code, message=readable(message))


class ProblemDocument(BaseModel):
    """An error, by RFC 9457."""

    type: str = Field("about:blank", examples=["about:blank"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    code: str = Field(
        examples=["not_found"],
        description="The kind of error, for programs; it stays when `detail` is reworded.",
    )
    detail: str = Field(examples=["there is no schedule 'refresh'; did you mean 'refresh_all'?"])
    instance: str | None = Field(None, examples=["/admin/scheduled-jobs/refresh"])
    errors: list[FieldProblem] | None = Field(
        default=None, description="The problems with the request, by field."
    )


#: The errors of all endpoints, for the OpenAPI document.
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemDocument, "description": meaning}
    for status, meaning in {
        400: "The body can't be read.",
        401: "The caller is unknown: the token or JWT is missing, or no longer valid.",
        403: "The caller may not do that.",
        404: "Nothing has that name.",
        409: "Its state doesn't allow that, it exists already, or it is being changed.",
        413: "The request has more than 1 MB.",
        422: "The request is invalid; `errors` lists the problems.",
        429: "The user makes too many changes (`pgbeat_web_user_rate`), or many ask for stacks.",
        503: "The database or another server can't be reached now.",
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
    """Returns the response to an error. By default, its code is that of the status."""
    document = ProblemDocument(
        type="about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        code=code or _CODES.get(status, "error"),
        detail=readable(detail),
        instance=readable(request.url.path),
        errors=[FieldProblem.of(fault) for fault in islice(problems, MOST_PROBLEMS)] or None,
    )
    content = document.model_dump(exclude_none=True)
    return JSONResponse(content, status, media_type=MEDIA_TYPE, headers=headers)


def readable(words: str) -> str:
    """Returns a text that can be sent, with lone surrogates replaced."""
    return words.encode(errors="replace").decode()


def described(request: Request, error: Exception) -> tuple[int, str, str]:
    """Returns the status, title and detail with which the app answers an error."""
    handlers = request.app.exception_handlers
    kind = next(kind for kind in type(error).__mro__ if kind in handlers)
    answer = json.loads(handlers[kind](request, error).body)
    return int(answer["status"]), str(answer["title"]), str(answer["detail"])


def install(app: FastAPI) -> None:
    """Adds the handlers of errors to the app."""
    app.add_exception_handler(errors.PgbeatError, _ours)
    app.add_exception_handler(IssuerAway, _away)
    app.add_exception_handler(errors.BrokerUnavailable, _broker)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    for lost in (DBAPIError, psycopg.Error, PoolTimeout):
        app.add_exception_handler(lost, _database)
    for unfit in (UnicodeEncodeError, RecursionError):
        app.add_exception_handler(unfit, _unfit)
    app.add_exception_handler(Exception, _unexpected)


def _ours(request: Request, error: Exception) -> Response:
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    headers = {"WWW-Authenticate": 'Bearer realm="pgbeat"'} if status == 401 else None
    if isinstance(error, errors.TooMany):
        headers = {"Retry-After": str(ceil(error.seconds))}
    code = getattr(error, "code", None)
    problems = error.problems if isinstance(error, errors.InvalidInput) and status < 500 else ()
    return problem(request, status, str(error), code=code, problems=problems, headers=headers)


def _away(request: Request, error: Exception) -> Response:
    return problem(request, 503, str(error), code="issuer_unavailable")


def _broker(request: Request, error: Exception) -> Response:
    logger.warning("%s", error)
    return problem(
        request, 503, "the broker can't be reached now", code=errors.BrokerUnavailable.code
    )


def _invalid(request: Request, error: Exception) -> Response:
    wrong = error.errors() if isinstance(error, RequestValidationError) else ()
    faults = [
        fault._replace(message=f"{fault.field}: {fault.message}") if fault.field else fault
        for fault in of_pydantic(wrong)
    ]
    message = "; ".join(fault.message for fault in faults[:5]) or "the request can't be understood"
    return problem(request, 422, message, code="invalid", problems=faults)


def of_pydantic(wrong: Iterable[Any], *, is_request: bool = True) -> Iterator[errors.Problem]:
    """Yields pydantic's errors in a request, or in a model, as problems."""
    for error in wrong:
        path = ""
        for part in error["loc"][1 if is_request else 0 :]:
            path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
        context = error.get("ctx", {})
        code = _PYDANTIC_CODES.get(error["type"], "malformed")
        cause = context.get("error")
        message = str(cause if isinstance(cause, Exception) else error["msg"])
        yield errors.Problem(context.get("field", ""), code, message).within(path)


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  (for the type)
    detail = str(error.detail)
    if error.status_code == 404 and detail == "Not Found":
        detail = "there is nothing at this path; /docs lists all paths"
    headers = dict(error.headers) if error.headers else None
    if error.status_code == 405:
        allowed = _allowed(request)
        headers = {"Allow": allowed}
        detail = f"this path doesn't take {request.method}; it takes {allowed}"
    return problem(request, error.status_code, detail, headers=headers)


def _allowed(request: Request) -> str:
    """Returns the methods of all routes of the path; the router only knows the first route's."""
    routes = [route for route in request.app.router.routes if not isinstance(route, Mount)]
    allowed = [
        method
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes
        )
    ] or ["GET"]
    return ", ".join(["HEAD", *allowed] if "GET" in allowed else allowed)


def _database(request: Request, error: Exception) -> Response:
    code, reason = server_errors.code_of(error), connections.first_line(error)
    if code == server_errors.UNAVAILABLE:
        logger.warning("The database can't be reached: %s", reason)
    elif code in ("", errors.SchemaError.code):
        logger.error("The database refused a statement", exc_info=error)
    status, detail = _OF_DATABASE[code]
    return problem(request, status, detail.format(reason), code=code or None)


def _unfit(request: Request, error: Exception) -> Response:
    logger.info("A request can't be processed", exc_info=error)
    fault = "nested too deeply" if isinstance(error, RecursionError) else "not valid Unicode"
    return problem(request, 422, f"something in the request is {fault}", code="invalid")


def _unexpected(request: Request, error: Exception) -> Response:
    # The middleware doesn't see this response.
    return problem(request, 500, "an internal error; the log says more", headers=HEADERS)
