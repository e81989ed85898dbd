"""`/docs`: the API's reference, without anything from other servers."""

import re
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request, Response
from markupsafe import Markup, escape

from pgbeat.web.pages.render import PageRoute, open_page
from pgbeat.web.reference import Reference, Section

router = APIRouter(route_class=PageRoute)

#: Up to so many operations that were found are shown whole.
_WHOLE = 3


@router.get("/docs")
def reference_page(
    request: Request, search: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """Lists all operations of the API, or those with the words of `search`; few are shown whole."""
    search = search.strip()
    return _page(request, _reference(request).find(search), search=search)


@router.get("/docs/{section}")
def section_page(request: Request, section: str) -> Response:
    """Shows the operations of a section, and their models."""
    for page in _reference(request).sections:
        if page.slug == section:
            return _page(request, [page], here=page)
    raise HTTPException(404, f"the API has no section {section!r}")


def _page(
    request: Request, sections: Sequence[Section], *, here: Section | None = None, search: str = ""
) -> Response:
    """Shows what `search` has found, or the section that is `here`."""
    known = _reference(request)
    operations = [operation for section in sections for operation in section.operations]
    number = len(operations)
    is_whole = here is not None or (bool(search) and number <= _WHOLE)
    return open_page(
        request,
        "reference.html",
        known=known,
        sections=sections,
        is_whole=is_whole,
        models=known.models_of(operations) if is_whole else [],
        here=here,
        search=search,
        number=number,
        prose=prose,
    )


def _reference(request: Request) -> Reference:
    state = request.app.state
    if not hasattr(state, "pgbeat_reference"):
        state.pgbeat_reference = Reference(request.app.openapi())
    reference: Reference = state.pgbeat_reference
    return reference


_MARKS = (
    (re.compile(r"`([^`]+)`"), r"<code>\1</code>"),
    (re.compile(r"\*\*([^*]+)\*\*"), r"<strong>\1</strong>"),
    (re.compile(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])"), r"<em>\1</em>"),
)


def prose(text: str) -> Markup:
    """Renders the Markdown of the API's descriptions."""
    html = str(escape(text.strip()))
    for mark, meant in _MARKS:
        html = mark.sub(meant, html)
    parts = [part.strip() for part in html.split("\n\n") if part.strip()]
    return Markup("".join(f"<p>{part}</p>" for part in parts))  # noqa: S704  (escaped above)
