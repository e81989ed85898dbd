"""`/workers`: the workers that record executions, and Celery's remote control of them."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from pgbeat.jobs.verbs import worker_control
from pgbeat.jobs.verbs.worker_control import Verb, WorkerCommand
from pgbeat.monitoring import app_versions, worker_usage
from pgbeat.views import broker as views
from pgbeat.web.api.bodies import Body, Done, of_row
from pgbeat.web.calls import AdminCall, ViewerCall

router = APIRouter(prefix="/workers", tags=["workers"])


@of_row(worker_usage.RunningTask)
class FoundTask(BaseModel):
    """An execution that a worker runs."""


@of_row(worker_usage.WorkerUsage)
class FoundWorker(BaseModel):
    """A worker."""

    name: str = Field(examples=["celery@web1"])
    pool: str | None = Field(examples=["prefork"])
    concurrency: int | None = Field(description="How many executions it runs at once.")
    queues: list[str] | None = Field(description="That it consumes from.")
    versions: dict[str, str] | None = Field(
        description="Of pgbeat, celery, python and the app, if it has one; roles of `pgbeat.sql`."
    )
    memory_mb: float | None = Field(description="Resident, of all of its processes.")
    cpu: float | None = Field(description="Cores in use, on average.", examples=[0.8])
    reported_at: datetime | None = Field(description="When it said that, every ten seconds.")
    missing_since: datetime | None = Field(
        description="Since when it is dead, or was last heard of; null if it lives."
    )
    tasks: list[FoundTask] = Field(description="Up to five executions that have run longest.")


class WorkerList(BaseModel):
    """The workers, by name."""

    workers: list[FoundWorker]


@of_row(app_versions.AppVersion)
class FoundVersion(BaseModel):
    """A version of the app."""

    version: str = Field(examples=["2f1c9d0"])
    state: Literal["running", "drained", "abandoned"] = Field(
        description="Drained: nothing runs on it or waits for it. Abandoned: jobs wait for it, and "
        "none of its workers lives."
    )
    workers: int = Field(description="How many of its workers live.")
    started_at: datetime | None = Field(description="When the first of its workers started.")
    waiting: int = Field(description="How many unfinished jobs pinned to it don't run.")
    oldest_at: datetime | None = Field(description="When the oldest of them was made.")


class VersionList(BaseModel):
    """The versions of the app, the newest first."""

    versions: list[FoundVersion]


class WorkerOrder(Body):
    """The arguments of an order."""

    by: int = Field(1, ge=1, le=1000, description="With `grow` and `shrink`.")
    queue: str | None = Field(
        None, max_length=200, description="With `add-consumer` and `cancel-consumer`."
    )


class WorkerDone(Done):
    """Confirms an order."""

    message: str = Field(description="What the worker answered.", examples=["pool will grow"])


@router.get("", summary="List workers")
def list_workers(call: ViewerCall) -> WorkerList:
    """Lists the workers that record executions, and the dead ones for an hour."""
    with call.backend.transaction() as connection:
        rows = worker_usage.listing(connection, call.namespace)
    return WorkerList(workers=[FoundWorker.model_validate(views.worker(row)) for row in rows])


@router.get("/versions", summary="List versions of the app")
def list_versions(call: ViewerCall) -> VersionList:
    """Lists the versions that workers report (`pgbeat_version`), and what waits for each."""
    with call.backend.transaction() as connection:
        rows = app_versions.listing(connection, call.namespace)
    return VersionList(versions=[FoundVersion.model_validate(views.app_version(r)) for r in rows])


@router.post("/{name:path}/{verb}", summary="Control a worker")
def control_worker(
    call: AdminCall,
    name: Annotated[str, Path(max_length=255, examples=["celery@web1"])],
    verb: Verb,
    body: WorkerOrder | None = None,
) -> WorkerDone:
    """Shuts a worker down, changes the size of its pool, or adds or cancels a queue.

    Celery's remote control sends it; the worker answers within five seconds, or the status is 503.
    """
    order = WorkerCommand(verb, body.by, body.queue) if body else WorkerCommand(verb)
    with call.work() as unit:
        answer = worker_control.send(unit, name, order)
    return WorkerDone(message=answer or "it was told to shut down")
