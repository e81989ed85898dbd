"""`/console/workers`: the workers, their versions, and queues that none consumes from."""

from fastapi import APIRouter, Response

from pgbeat.broker import queues
from pgbeat.config import delays_in_table
from pgbeat.errors import InvalidInput, NoReply, NotFound, WorkerRefused
from pgbeat.jobs.verbs import worker_control
from pgbeat.jobs.verbs.worker_control import WorkerCommand
from pgbeat.monitoring import app_versions, worker_usage
from pgbeat.web.pages.render import AdminVisit, PageRoute, ViewerVisit, path

router = APIRouter(route_class=PageRoute)


@router.get("/console/workers")
def workers_page(visit: ViewerVisit) -> Response:
    """Shows the workers of the namespace."""
    unserved = []
    with visit.reading() as connection:
        rows = worker_usage.listing(connection, visit.namespace)
        versions = app_versions.listing(connection, visit.namespace)
        if delays_in_table(visit.backend.celery.conf):
            try:
                visit.backend.require_broker(connection)
                all_queues = queues.all_queues(connection)
            except NotFound:
                all_queues = []
            unserved = [row for row in all_queues if row.is_unserved]
    return visit.page("workers.html", "workers", rows=rows, versions=versions, unserved=unserved)


@router.post("/console/workers")
def control_worker(visit: AdminVisit) -> Response:
    """Controls a worker, by the form's `do`."""
    name = visit.posted.get("worker", "")
    verb = visit.verb(worker_control.VERBS)
    order = WorkerCommand(verb, queue=visit.text("queue") or None)
    try:
        with visit.work() as unit:
            reply = worker_control.send(unit, name, order)
    except (InvalidInput, NotFound, NoReply, WorkerRefused) as error:
        return visit.redirect(path("workers"), str(error), is_good=False)
    answer = f"answers: {reply}" if reply else "was told to shut down"
    return visit.redirect(path("workers"), f"{name} {answer}.")
