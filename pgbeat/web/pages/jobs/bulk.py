"""`/console/bulk`: changes the ticked jobs of the list, or all that match."""

from typing import Any

from fastapi import APIRouter, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from pgbeat.errors import PgbeatError
from pgbeat.jobs.verbs.bulk import MOST, Order, preview
from pgbeat.web.api.jobs import bulk as api
from pgbeat.web.api.jobs.bulk import BulkOrder
from pgbeat.web.pages import forms
from pgbeat.web.pages.humanize import counted
from pgbeat.web.pages.render import ChangeVisit, PageRoute, Visit, path

router = APIRouter(route_class=PageRoute)

#: Jobs of a request, after which the page says how far it is.
_STEP = 200
#: The verbs: what the button says, and what was done.
VERBS = {
    "retry": ("Retry", "Retried"),
    "cancel": ("Cancel", "Cancelled"),
    "pause": ("Pause", "Paused"),
    "resume": ("Resume", "Resumed"),
    "update": ("Move", "Moved"),
    "delete": ("Delete", "Deleted"),
}


@router.post("/console/bulk")
def change_jobs(visit: ChangeVisit) -> Response:
    """Shows which jobs it is about, and how many; with `sure`, changes some hundred of them."""
    fields = {key: text.strip() for key, text in visit.posted.items() if text.strip()}
    visit.verb(VERBS)
    # A browser posts no ids if nothing is ticked, which must never mean everything.
    is_all = fields.get("which") == "all"
    ids = [] if is_all else list(visit.ids)
    if not ids and not (is_all and fields.get("q")):
        advice = "Tick the jobs." if not is_all else "Filter the list."
        return visit.redirect(_list(fields), f"Nothing was done. {advice}", is_good=False)
    try:
        body = _body(fields, ids)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None
    try:
        if "sure" not in fields:
            return _ask(visit, body, fields, ids)
        return _go_on(visit, body, fields, ids)
    except PgbeatError as error:
        return visit.redirect(_list(fields), str(error), is_good=False)


def _body(fields: dict[str, str], ids: list[str]) -> BulkOrder:
    """Returns the order that a form asks for. Raises `ValidationError`."""
    asked: dict[str, Any] = {"ids": ids} if ids else {"q": fields["q"]}
    changes = {"lane": fields.get("to_lane") or None} if fields["do"] == "update" else None
    order = {"verb": fields["do"], "filter": asked, "changes": changes, "next": fields.get("next")}
    return BulkOrder.model_validate(order | {"limit": _STEP})


def _list(fields: dict[str, str]) -> str:
    return path("jobs", q=fields.get("q"))


def _ask(visit: Visit, body: BulkOrder, fields: dict[str, str], ids: list[str]) -> Response:
    order = body.order()
    with visit.reading() as connection:
        which = api.which(connection, visit, body.filter)
        seen = preview(connection, visit.caller, order, which)
    rows, others = visit.redactor.rows(seen.first), seen.of_others(body.verb)
    return _page(visit, body, fields, ids, seen.number, rows=rows, others=others)


def _page(
    visit: Visit, body: BulkOrder, fields: dict[str, str], ids: list[str], number: int, **more: Any
) -> Response:
    return visit.page(
        "bulk.html",
        "jobs",
        number=number,
        most=MOST,
        verb=VERBS[body.verb][0],
        fields=fields,
        ids=ids,
        back=_list(fields),
        **{"rows": [], "progress": None, "others": ""} | more,
    )


def _go_on(visit: Visit, body: BulkOrder, fields: dict[str, str], ids: list[str]) -> Response:
    order: Order = body.order()
    seen, progress, following = api.carry_out(visit, order, body.filter, body.next, _STEP)
    total = seen.number if seen else _number(fields, "number")
    done = _number(fields, "done") + progress.done
    left = _number(fields, "left") + sum(progress.left.values())
    if following is not None:
        fields |= {"next": following, "done": str(done), "left": str(left), "number": str(total)}
        return _page(visit, body, fields, ids, total, progress=(done + left, total))
    message = f"{VERBS[body.verb][1]} {counted(done, 'job')}."
    if left:
        why = f": {progress.problems[0].message}" if progress.problems else ""
        message += f" Left {left:,} alone{why}."
    return visit.redirect(_list(fields), message, is_good=done > 0 or not left)


def _number(fields: dict[str, str], key: str) -> int:
    """Returns what a hidden field has counted so far."""
    return forms.natural(fields.get(key, "0")) or 0
