"""`/docs`: the API's reference, without anything from other servers."""

import re
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from markupsafe import Markup, escape

from pgbeat.web.pages.render import PageRoute, open_page
from pgbeat.web.reference import Reference

router = APIRouter(route_class=PageRoute)

#: Up to so many operations that were found are shown open.
_OPEN = 3


@router.get("/docs")
def reference_page(
    request: Request, search: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """Shows all operations of the API, or those with the words of `search`."""
    state = request.app.state
    if not hasattr(state, "pgbeat_reference"):
        state.pgbeat_reference = Reference(request.app.openapi())
    known: Reference = state.pgbeat_reference
    search = search.strip()
    found = known.find(search)
    number = sum(len(section.operations) for section in found)
    return open_page(
        request,
        "reference.html",
        known=known,
        sections=found,
        search=search,
        number=number,
        is_open=bool(search) and number <= _OPEN,
        prose=prose,
    )


_MARKS = (
    (re.compile(r"`([^`]+)`"), r"<code>\1</code>"),
    (re.compile(r"\*\*([^*]+)\*\*"), r"<strong>\1</strong>"),
    (re.compile(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])"), r"<em>\1</em>"),
)


def prose(text: str) -> Markup:
    """Renders the Markdown of the API's descriptions."""
    made = str(escape(text.strip()))
    for mark, meant in _MARKS:
        made = mark.sub(meant, made)
    parts = [part.strip() for part in made.split("\n\n") if part.strip()]
    return Markup("".join(f"<p>{part}</p>" for part in parts))  # noqa: S704  (escaped above)
