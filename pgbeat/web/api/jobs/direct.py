"""`/direct/{task}`: runs a task in this process, in the next free slot of a lane."""

from datetime import timedelta
from typing import Annotated, Any

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import APIRouter, Path
from pydantic import AfterValidator, BaseModel, Field

from pgbeat.errors import NoSlot
from pgbeat.jobs.checks import permissions
from pgbeat.jobs.checks.task_checks import check_arguments, check_task
from pgbeat.jobs.submitting import direct
from pgbeat.web.api.bodies import Body, Length, PlainJson, PlainList, example
from pgbeat.web.calls import TheCall, WebCall

router = APIRouter(prefix="/direct", tags=["direct execution"])

#: How many direct executions a process runs at once, or has waiting for a slot, and one user in it.
MOST, EACH = 16, 4
_LONGEST = timedelta(minutes=10)


def _bounded(timeout: timedelta) -> timedelta:
    if not timedelta(0) <= timeout <= _LONGEST:
        raise ValueError("must be 0 seconds to 10 minutes")
    return timeout


class DirectRun(Body):
    """The arguments and the lane of a direct execution."""

    model_config = example({"lane": "gpu", "kwargs": {"prompt": "a story"}, "timeout": 30})

    lane: str = Field(min_length=1, max_length=200)
    args: PlainList = Field(default=[])
    kwargs: PlainJson = Field(default={})
    timeout: Annotated[Length, AfterValidator(_bounded)] = Field(
        timedelta(seconds=60), description="The longest wait for a slot."
    )
    tags: list[str] | None = None
    resources: dict[str, float] | None = Field(None, examples=[{"gpu": 1}])


class DirectDone(BaseModel):
    """The outcome of a direct execution."""

    success: bool = Field(description="False if the task raised an error.")
    result: Any = Field(description="What the task returned; text if that is not JSON.")
    error: str | None = Field(examples=[None])


@router.post("/{task}", summary="Run a task in the server's process")
async def run_direct(
    call: TheCall,
    task: Annotated[str, Path(max_length=255, examples=["tasks.generate"])],
    body: DirectRun,
) -> DirectDone:
    """Runs a task in this server's process as soon as the lane has a slot, before waiting jobs.

    It makes no job and leaves no history. Responds with 503 if no slot was free in time. For
    administrators, unless `pgbeat_web_direct` lets users run the tasks of `pgbeat_web_tasks`.
    """
    state = call.request.app.state
    if not hasattr(state, "pgbeat_direct"):
        state.pgbeat_direct = []
    under_way: list[str] = state.pgbeat_direct
    caller = call.caller
    if len(under_way) >= MOST:
        raise NoSlot(f"{MOST} direct executions are under way in this process; try again")
    if caller.is_restricted and under_way.count(caller.name) >= EACH:
        raise NoSlot(f"{caller.name} has {EACH} direct executions under way; wait for one of them")
    under_way.append(caller.name)
    try:
        return await anyio.to_thread.run_sync(_run, call, task, body, limiter=CapacityLimiter(1))
    finally:
        under_way.remove(caller.name)


def _run(call: WebCall, task: str, body: DirectRun) -> DirectDone:
    if not call.backend.settings.web_direct:
        permissions.require_admin(call.caller, f"run task {task!r} in the web process")
    permissions.require_task(call.caller, task)
    check_task(call.backend.celery, task, call.caller)
    check_arguments(call.backend.celery, task, body.args, body.kwargs)
    with call.unit() as unit:
        execution = direct.request(
            unit, task, lane=body.lane, tags=body.tags or (), resources=body.resources
        )
    try:
        result = execution.run(body.args, body.kwargs, timeout=body.timeout.total_seconds())
    except (Exception, SystemExit) as error:
        if not direct.raised_by_task(error):
            raise
        return DirectDone(success=False, result=None, error=direct.sentence(error))
    return DirectDone(success=True, result=direct.plain(result), error=None)
