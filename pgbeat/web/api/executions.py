"""`/executions/{id}`: one attempt at a job on a worker."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path

from pgbeat.errors import NotFound
from pgbeat.jobs import executions
from pgbeat.web.api.job_models import ExecutionDetail, execution
from pgbeat.web.api.visible import visible_job
from pgbeat.web.backend import TheBackend
from pgbeat.web.identity import TheCaller

router = APIRouter(prefix="/executions", tags=["jobs"])


@router.get("/{execution_id}", summary="Get an execution")
def get_execution(
    backend: TheBackend, caller: TheCaller, execution_id: Annotated[UUID, Path()]
) -> ExecutionDetail:
    """Returns an execution with its result or traceback."""
    with backend.transaction() as connection:
        run = executions.get(connection, execution_id)
        try:
            job = visible_job(connection, backend, caller, run.job_id)
        except NotFound:
            raise NotFound(f"there is no execution {execution_id}") from None
    return ExecutionDetail.model_validate(execution(backend.redactor(caller).row(run, job.task)))
