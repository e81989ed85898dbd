"""`/console/jobs/ID/tree`: what a job is a part of, as one tree."""

from fastapi import APIRouter, Response

from pgbeat.jobs.explaining import tree
from pgbeat.results import lookup
from pgbeat.web.api.visible import visible_job
from pgbeat.web.pages.render import PageRoute, TheVisit

router = APIRouter(route_class=PageRoute)


@router.get("/console/jobs/{job_id}/tree")
def tree_page(visit: TheVisit, job_id: str) -> Response:
    """Shows the canvas, group and retries of a job, and what blocks what."""
    with visit.reading() as connection:
        job = visible_job(connection, visit, job_id)
        prefix = lookup.prefix_of(visit.backend.celery.conf)
        whole = tree.of_job(connection, visit.caller, job, prefix=prefix)
    visit.redactor.mask_errors(whole.root.all())
    is_over = all(node.finished_at or node.kind != "job" for node in whole.root.all())
    return visit.page("job_tree.html", "jobs", job=job, tree=whole, is_over=is_over)
