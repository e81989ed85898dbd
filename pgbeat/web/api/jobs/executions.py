"""`/executions/{id}`: one attempt at a job on a worker."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path

from pgbeat.errors import NotFound
from pgbeat.jobs.running import executions
from pgbeat.views import jobs as views
from pgbeat.web.api.jobs.job_models import FoundExecution
from pgbeat.web.api.visible import visible_job
from pgbeat.web.calls import TheCall

router = APIRouter(prefix="/executions", tags=["jobs"])


@router.get("/{execution_id}", summary="Get an execution")
def get_execution(call: TheCall, execution_id: Annotated[UUID, Path()]) -> FoundExecution:
    """Returns an execution."""
    with call.backend.transaction() as connection:
        run = executions.get(connection, execution_id)
        try:
            job = visible_job(connection, call, run.job_id)
        except NotFound:
            raise NotFound(f"there is no execution {execution_id}") from None
    run = call.redactor.row(run, job.task)
    return FoundExecution.model_validate(views.execution(run))
