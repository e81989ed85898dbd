"""`/executions/{id}`: one attempt of a worker at a job."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path

from pgbeat.errors import NotFound
from pgbeat.jobs import executions
from pgbeat.web.api.job_models import ExecutionDetail, execution
from pgbeat.web.api.steering import seen_job
from pgbeat.web.backend import TheBackend
from pgbeat.web.identity import TheCaller

router = APIRouter(prefix="/executions", tags=["jobs"])


@router.get("/{execution_id}", summary="Get an execution")
def get_execution(
    backend: TheBackend, caller: TheCaller, execution_id: Annotated[UUID, Path()]
) -> ExecutionDetail:
    """An attempt at a job, with what it returned or raised."""
    with backend.transaction() as connection:
        run = executions.get(connection, execution_id)
        try:
            seen_job(connection, backend, caller, run.job_id)
        except NotFound:
            raise NotFound(f"there is no execution {execution_id}") from None
    return ExecutionDetail.model_validate(execution(run))
