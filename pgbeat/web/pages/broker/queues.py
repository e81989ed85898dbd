"""`/console/queues`: the broker's queues, the page of one, and the dead letters."""

from fastapi import APIRouter, Response

from pgbeat.broker import control, dead_letters, queues
from pgbeat.config import delays_in_table
from pgbeat.errors import NotFound
from pgbeat.jobs.searching import query, search
from pgbeat.monitoring import worker_usage
from pgbeat.web.api.jobs.job_queries import queried
from pgbeat.web.pages import forms, load_chart
from pgbeat.web.pages.humanize import counted
from pgbeat.web.pages.render import AdminVisit, Name, PageRoute, ViewerVisit, path

router = APIRouter(route_class=PageRoute)

#: Dead letters, and jobs of a queue's page.
_DEAD, _NEWEST = 50, 20


@router.get("/console/queues")
def queues_page(visit: ViewerVisit, dead: str = "") -> Response:
    """Shows all queues, and the newest dead letters of all or of the queue `dead`."""
    rows, letters, why = [], [], ""
    with visit.reading() as connection:
        try:
            visit.backend.require_broker(connection)
        except NotFound as error:
            why = str(error)
        else:
            rows = [row for row in queues.all_queues(connection) if not row.is_internal]
            letters = dead_letters.find(connection, queue=dead or None, limit=_DEAD + 1)
    return visit.page(
        "queues.html",
        "queues",
        rows=rows,
        letters=letters[:_DEAD],
        has_more=len(letters) > _DEAD,
        dead=dead,
        why=why,
        is_stock=not delays_in_table(visit.backend.celery.conf),
    )


@router.get("/console/queues/{name:path}")
def queue_page(visit: ViewerVisit, name: Name, span: str = load_chart.USUAL) -> Response:
    """Shows the load of a queue, who consumes from it, and its newest jobs."""
    asked = str(query.of({"queue": name}))
    with visit.reading() as connection:
        visit.backend.require_broker(connection)
        row = queues.get(connection, name)
        chart = load_chart.chart_of(visit, connection, "queue", name, span)
        which = queried(connection, visit, asked, None, {})
        newest = search.page(connection, which, limit=_NEWEST)
        workers = worker_usage.listing(connection, visit.namespace, tasks=0)
    return visit.page(
        "queue.html",
        "queues",
        of="queues",
        row=row,
        chart=chart,
        jobs=visit.redactor.rows(newest.rows),
        is_cut=newest.is_cut,
        workers=[worker for worker in workers if name in (worker.queues or ())],
        is_stock=not delays_in_table(visit.backend.celery.conf),
    )


@router.post("/console/queues")
def change_queue(visit: AdminVisit) -> Response:
    """Pauses, resumes or purges a queue, by the form's `do`."""
    verb, name = visit.verb(("purge", "pause", "resume")), visit.posted.get("queue", "")
    with visit.work() as unit:
        visit.backend.require_broker(unit.connection)
        if verb == "purge":
            count = control.purge(unit, name)
            message = f"Deleted {counted(count, 'message')} from queue '{name}'."
        else:
            with unit.transaction():
                change = control.pause if verb == "pause" else control.resume
                change(unit, name)
            message = f"Queue '{name}' {'is paused' if verb == 'pause' else 'continues'}."
    here = path("queues", name) if visit.posted.get("from") == "queue" else path("queues")
    return visit.redirect(here, message)


@router.post("/console/dead")
def change_dead(visit: AdminVisit) -> Response:
    """Requeues or drops a dead letter, by the form's `do`."""
    verb, number = visit.verb(("requeue", "drop")), forms.natural(visit.posted.get("id", ""))
    if number is None:
        raise NotFound(f"there is no dead letter {visit.posted.get('id', '')[:80]!r}")
    with visit.unit() as unit:
        visit.backend.require_broker(unit.connection)
        chosen = control.choose(unit.connection, ids=[number])
        change = control.requeue if verb == "requeue" else control.drop
        count = change(unit, chosen)
    if not count:
        message = "It can't be put back: its queue was deleted before."
    elif verb == "drop":
        message = "The message was dropped."
    else:
        message = f"The message is back in queue '{chosen[number]}'."
    return visit.redirect(path("queues"), message, is_good=bool(count))
