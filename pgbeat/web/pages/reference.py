"""`/docs`: the API's reference, with nothing from elsewhere."""

import re
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from markupsafe import Markup, escape

from pgbeat.web.pages.render import PageRoute, page
from pgbeat.web.reference import Reference

router = APIRouter(route_class=PageRoute)

#: So many operations that were found are shown open.
_OPEN = 3


@router.get("/docs")
def reference_page(
    request: Request, search: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """All operations of the API, or those that have the words."""
    known = _reference(request)
    found = known.find(search)
    number = sum(len(section.operations) for section in found)
    return page(
        request, "reference.html", known=known, sections=found, search=search.strip(),
        number=number, is_open=bool(search.strip()) and number <= _OPEN, prose=prose,
    )  # fmt: skip


def _reference(request: Request) -> Reference:
    state = request.app.state
    if not hasattr(state, "pgbeat_reference"):
        state.pgbeat_reference = Reference(request.app.openapi())
    found: Reference = state.pgbeat_reference
    return found


_MARKS = (
    (re.compile(r"`([^`]+)`"), r"<code>\1</code>"),
    (re.compile(r"\*\*([^*]+)\*\*"), r"<strong>\1</strong>"),
    (re.compile(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])"), r"<em>\1</em>"),
)


def prose(text: str) -> Markup:
    """Paragraphs of Markdown, as far as the API's descriptions use it."""
    made = str(escape(text.strip()))
    for mark, meant in _MARKS:
        made = mark.sub(meant, made)
    parts = [part.strip() for part in made.split("\n\n") if part.strip()]
    return Markup("".join(f"<p>{part}</p>" for part in parts))  # noqa: S704  (escaped above)
