"""Refuses unknown query parameters, and suggests the known one of a like name."""

from collections.abc import Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from pgbeat.suggest import did_you_mean


async def only_known(request: Request) -> None:
    """Raises `RequestValidationError` for query parameters that the endpoint doesn't know."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute) or not request.query_params:
        return
    known = set(_names(route.dependant))
    unknown = [name for name in dict.fromkeys(request.query_params) if name not in known]
    if unknown:
        raise RequestValidationError(
            [
                {"type": "extra_forbidden", "loc": ("query", name[:80]), "msg": _hint(name, known)}
                for name in unknown
            ]
        )


def _names(dependant: Dependant) -> Iterator[str]:
    """Yields the query parameters of an endpoint and its dependencies."""
    for parameter in dependant.query_params:
        yield parameter.alias
    for other in dependant.dependencies:
        yield from _names(other)


def _hint(name: str, known: set[str]) -> str:
    hint = did_you_mean(name, known) or (
        f"there are {', '.join(sorted(known))}" if known else "it takes none"
    )
    return f"there is no parameter {name[:80]!r}; {hint}"
