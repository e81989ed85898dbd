"""`/console/jobs`: the list of jobs, which a query narrows down."""

from typing import NamedTuple
from uuid import UUID

from fastapi import APIRouter, Response
from sqlalchemy import Connection

from pgbeat.database.tables import JOB_STATES
from pgbeat.errors import InvalidInput, NotFound
from pgbeat.jobs.rows.filters import is_glob
from pgbeat.jobs.searching import query, search
from pgbeat.jobs.verbs.bulk import STATES
from pgbeat.views.jobs import progress_of_jobs
from pgbeat.web.api.jobs.job_queries import queried
from pgbeat.web.api.paging import cursor, moment, read
from pgbeat.web.pages import load_chart
from pgbeat.web.pages.jobs.bulk import VERBS
from pgbeat.web.pages.render import PageRoute, TheVisit, Visit, path

router = APIRouter(route_class=PageRoute)

#: Jobs of a page, and tasks by which to narrow it down.
_PAGE, _TASKS = 50, 6

#: Keys of the query that are parameters, too: links have them, and two by another name.
_KEYS = ("state", "task", "schedule", "lane", "queue", "by", "template", "group", "label", "error")
_LINKED = dict(zip(_KEYS, _KEYS, strict=True)) | {"since": "from", "before": "until"}


class Facet(NamedTuple):
    """A value by which the list can be narrowed down."""

    value: str
    number: int
    #: The list with it, or without it if it is chosen.
    href: str
    is_chosen: bool


@router.get("/console/jobs")
def jobs_page(
    visit: TheVisit, q: str = "", late: str = "", span: str = load_chart.USUAL, after: str = ""
) -> Response:
    """Shows the jobs that the caller may see and that a query finds, the newest first.

    `late` and the parameters in `_LINKED` are terms of the query, too.
    """
    linked = visit.request.query_params
    terms = {key: linked.get(name, "").strip()[:1000] for key, name in _LINKED.items()}
    named, q = query.of(terms | {"is": "late" if late else ""}), q.strip()[:1000]
    asked, remark = named, ""
    try:
        asked = query.join([query.parse(q), named])
    except InvalidInput as mistakes:
        remark = str(mistakes)
    return _show(visit, asked, q if remark else str(asked), remark, span, after)


def _show(
    visit: Visit, asked: query.Query, text: str, remark: str, span: str, after: str
) -> Response:
    shown = span if span in load_chart.SPANS and span != load_chart.USUAL else ""
    before = read(after or None, moment, UUID)
    page, counts, chart = search.Found([], None, is_cut=False), None, None
    with visit.listing() as connection:
        if not remark:
            try:
                which = queried(connection, visit, text, None, {})
            except (InvalidInput, NotFound) as mistake:
                remark = str(mistake)
            else:
                page = search.page(connection, which, after=before, limit=_PAGE)
                counts = search.counts(connection, which) if not after else None
        progress = progress_of_jobs(connection, page.rows, visit.redactor)
        if visit.caller.sees_all and not after:
            chart = _chart(visit, connection, asked, span, shown)
    return visit.page(
        "jobs.html",
        "jobs",
        rows=visit.redactor.rows(page.rows),
        progress=progress,
        text=text,
        asked=asked,
        terms=[(str(term), path("jobs", q=asked.less(term), span=shown)) for term in asked.terms],
        search_terms=query.TERMS,
        facets=_facets(asked, counts, shown) if counts else None,
        counts=counts,
        span=shown,
        chart=chart,
        verbs=_verbs(asked.get("state")),
        after=after,
        remark=remark,
        found=page,
        next=cursor(*page.next) if page.next else None,
    )


def _verbs(state: str) -> dict[str, tuple[str, str]]:
    """Returns the verbs that apply to jobs in one of these states."""
    states = set(state.split(","))
    return {
        verb: VERBS[verb] for verb, can in STATES.items() if not state or not states.isdisjoint(can)
    }


def _chart(
    visit: Visit, connection: Connection, asked: query.Query, span: str, shown: str
) -> load_chart.Chart:
    # Loads are kept of each task, lane and queue, and of none of their combinations.
    named = [(key, asked.get(key)) for key in ("task", "lane", "queue") if asked.get(key)]
    if len(named) > 1 or (named and is_glob(named[0][1])):
        named = []
    return load_chart.chart(
        visit,
        connection,
        span,
        **dict(named),
        here=lambda chosen: path("jobs", q=asked, span=chosen),
        filters={"q": str(asked.without("since", "before")), "span": shown},
    )


def _facets(asked: query.Query, counts: search.Counts, span: str) -> dict[str, list[Facet]]:
    """Returns the states, and the most frequent tasks."""
    states = {state: counts.states[state] for state in JOB_STATES if state in counts.states}
    tasks = sorted(counts.tasks.items(), key=lambda item: (-item[1], item[0]))[:_TASKS]
    return {
        "state": _facet(asked, "state", states, span),
        "task": _facet(asked, "task", dict(tasks), span),
    }


def _facet(asked: query.Query, key: str, numbers: dict[str, int], span: str) -> list[Facet]:
    chosen = asked.get(key)
    return [
        Facet(
            value,
            number,
            path("jobs", q=asked.having(**{key: "" if value == chosen else value}), span=span),
            value == chosen,
        )
        for value, number in numbers.items()
    ]
