"""`/scheduler/…`, `/metrics`: beats and statistics; `/healthz…`, `/readyz`: answers for probes."""

from datetime import datetime
from typing import Any, Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from pgbeat.broker import own_tables
from pgbeat.database import connections
from pgbeat.database.migrations import migrate
from pgbeat.errors import SchemaError
from pgbeat.monitoring import beats, statistics
from pgbeat.monitoring.metrics import prometheus
from pgbeat.monitoring.runbook import LATE
from pgbeat.views import jobs as views
from pgbeat.web.api.jobs.job_models import ExecutionFigures
from pgbeat.web.backend import TheBackend, WebBackend
from pgbeat.web.calls import ScraperCall, TheCall, ViewerCall
from pgbeat.web.problems import MEDIA_TYPE, ProblemDocument

router = APIRouter()


class BeatSession(BaseModel):
    """A beat and its session in the database."""

    host: str | None = Field(examples=["beat-1"])
    process: int | None = Field(examples=[4711])
    address: str | None = Field(examples=["10.0.0.7"])
    session: int = Field(description="The process id of its session on the server.")
    since: datetime | None = Field(description="When it connected.")
    checked_at: datetime | None = Field(description="Its last query, if that can be seen.")


class BeatStatus(BaseModel):
    """The beats, and how far behind they are."""

    leader: BeatSession | None
    standbys: list[BeatSession]
    due: int = Field(description="Schedules that are due and undecided, up to 10,000.")
    lag: float = Field(description="Seconds that the oldest of them has been due.")
    last_tick_at: datetime | None
    troubles: list[str] = Field(description="Problems; empty if all is well.")


class SchedulerMetrics(BaseModel):
    """Statistics of all jobs."""

    jobs: dict[str, int] = Field(
        description="Jobs by state, counted up to 10,000 each.",
        examples=[
            {"scheduled": 25, "running": 3, "completed": 1200, "failed": 50, "cancelled": 10}
        ],
    )
    executions: ExecutionFigures
    last_check_at: datetime | None = Field(
        description="When the leading beat last looked for due schedules."
    )
    last_metrics_update: datetime
    stale_locks_cleared: int = Field(
        description="Executions that were taken back from dead workers."
    )


class Alive(BaseModel):
    """Confirms that the process answers."""

    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    """Confirms that the process can serve."""

    status: Literal["ready"] = "ready"


class NotReady(ProblemDocument):
    """Says why the process can't serve, or why schedules are not launched on time."""

    reasons: list[str] = Field(examples=[["no beat leads: nothing is launched"]])


@router.get("/scheduler/status", tags=["scheduler"], summary="Get the beats and their lag")
def scheduler_status(call: ViewerCall) -> BeatStatus:
    """Says which beat leads, which stand by, and how long the due schedules have waited."""
    status = call.backend.beats()
    return BeatStatus(
        leader=None if status.leader is None else _beat(status.leader),
        standbys=[_beat(beat) for beat in status.standbys],
        due=status.backlog.due,
        lag=round(status.backlog.lag, 3),
        last_tick_at=status.last_tick_at,
        troubles=[*status.troubles],
    )


def _beat(beat: beats.Beat) -> BeatSession:
    return BeatSession(
        host=beat.host,
        process=beat.process,
        address=beat.session.client,
        session=beat.session.pid,
        since=beat.session.since,
        checked_at=beat.session.active_at,
    )


@router.get("/scheduler/metrics", tags=["scheduler"], summary="Get statistics of all jobs")
def scheduler_metrics(call: TheCall) -> SchedulerMetrics:
    """Counts the jobs by state, and summarizes the newest executions."""
    with call.listing() as connection:
        now = connections.now(connection)
        figures = statistics.of_all(connection, call.namespace)
    leader = call.backend.beats().leader
    return SchedulerMetrics(
        jobs=figures.jobs,
        executions=ExecutionFigures.model_validate(views.figures(figures.runs)),
        last_check_at=None if leader is None else leader.session.active_at,
        last_metrics_update=now,
        stale_locks_cleared=figures.counters.get("stale_claims_released", 0),
    )


@router.get("/healthz", tags=["health"], summary="Check that the process answers")
async def healthz() -> Alive:
    """Checks nothing else: a lost database is no reason to restart this process."""
    return Alive()


@router.get(
    "/readyz",
    tags=["health"],
    summary="Check that the process can serve",
    responses={503: {"model": NotReady, "description": "It can't; `reasons` say why."}},
)
def readyz(backend: TheBackend) -> Ready:
    """Checks that the database answers and has the right schema.

    It doesn't look for a beat, since the console is needed most when none leads.
    """
    reasons = _reasons(backend)
    return _not_ready("/readyz", reasons) if reasons else Ready()


@router.get(
    "/healthz/leader",
    tags=["health"],
    summary="Check that schedules are launched on time",
    responses={503: {"model": NotReady, "description": "They are not; `reasons` say why."}},
)
def healthz_leader(backend: TheBackend) -> Alive:
    """Checks, for monitoring, that a beat leads and keeps up."""
    reasons = _reasons(backend, of_beats=True)
    return _not_ready("/healthz/leader", reasons) if reasons else Alive()


def _not_ready(path: str, reasons: list[str]) -> Any:
    answer = NotReady(
        type="about:blank",
        title="Service Unavailable",
        status=503,
        code="not_ready",
        detail="; ".join(reasons),
        instance=path,
        reasons=reasons,
    )
    content: dict[str, Any] = answer.model_dump(exclude_none=True)
    return JSONResponse(content, 503, media_type=MEDIA_TYPE)


def _reasons(backend: WebBackend, *, of_beats: bool = False) -> list[str]:
    try:
        with backend.transaction() as connection:
            migrate.check(connection, reads_schedules=True)
            if not of_beats:
                return []
            troubles = beats.status(connection, backend.settings).troubles
            return [trouble for trouble in troubles if trouble.section == LATE]
    except SchemaError as error:
        return [str(error)]
    except (DBAPIError, PoolTimeout) as error:
        if isinstance(error, DBAPIError) and not connections.is_lost(error):
            return [f"the database refused: {connections.first_line(error)}"]
        return ["the database can't be reached"]


@router.get(
    "/metrics",
    tags=["scheduler"],
    summary="Get metrics for Prometheus",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    response_model=None,
)
def prometheus_metrics(call: ScraperCall) -> Response:
    """Returns all metrics in Prometheus' text format, which name schedules, queues and lanes."""
    with call.backend.session() as connection:
        has_broker = own_tables.are_expected(call.backend.settings.url, call.backend.celery.conf)
        body, kind = prometheus.render(
            connection, call.backend.settings, has_broker, call.backend.replica
        )
    return Response(body, headers={"Content-Type": kind})
