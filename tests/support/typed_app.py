"""A team's app that uses the public names, for type checkers in strict mode.

`tests/acceptance/test_package.py` has mypy and pyright check it against the installed wheel. Lines
with `type: ignore` must be errors: both checkers report one that is not needed.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from celery import Celery
from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import pgbeat
import pgbeat.testing
from pgbeat import Context, Current, JobRequest, aio
from pgbeat.jobs.groups.model import Group
from pgbeat.jobs.lanes.concurrency import Work
from pgbeat.jobs.lanes.model import Lane
from pgbeat.jobs.rows.model import Job

app = Celery("shop", broker="pgbeat+postgresql://localhost/shop")
app.conf.update(pgbeat_url="postgresql://localhost/shop", pgbeat_loop_interval=5)
engine = create_engine("postgresql+psycopg://localhost/shop")


@app.task(acks_late=True, pgbeat=pgbeat.TaskPolicy(lane="gpu", unique_for="1 hour", pin=True))
def resize(image: int, width: int = 800) -> int:
    """Uses what a task may call."""
    job = pgbeat.current()
    if job is not None:
        assert_type(job, Current)
        assert_type(job.interval_start, datetime | None)
    pgbeat.checkpoint({"row": image})
    pgbeat.progress(1, 2, "half")
    pgbeat.report(rows=image)
    pgbeat.artifacts("s3://shop/1.png")
    if assert_type(pgbeat.is_cancelled(), bool):
        raise pgbeat.Cancelled
    if width < 0:
        raise pgbeat.Snooze(timedelta(minutes=10))
    with pgbeat.finish(Session(engine)) as session:
        assert_type(session, Session)
    return width


@pgbeat.launcher
class StockIsLow(pgbeat.Launcher):
    """Decides for a schedule."""

    task = "shop.order"

    def check_conditions(self, ctx: Context) -> bool | pgbeat.Skip:
        assert_type(ctx.connection, Connection)
        assert_type(ctx.due_at, datetime)
        return ctx.last_run is None or pgbeat.Skip("enough", snooze=timedelta(hours=1))

    def prepare_job_data(self, ctx: Context) -> list[JobRequest]:
        return [JobRequest(kwargs={"shop": shop}, run_key=shop) for shop in ("a", "b")]


@pgbeat.concurrency_policy("one-a-tenant")
class OneATenant(pgbeat.ConcurrencyPolicy):
    """Says which jobs may run together."""

    def can_dispatch(self, job: Work) -> bool | str:
        return True if job.tags else f"{job.task} has no tenant"


def submit(session: Session) -> None:
    job = pgbeat.submit(resize, 17, kwargs={"width": 800}, lane="gpu", connection=session)
    assert_type(job, Job)
    assert_type(job.id, UUID)
    assert_type(pgbeat.submit_many([resize, "shop.order"], app=app), list[str])
    group = pgbeat.submit_group([resize, "shop.order"], mode="sequential", callback="shop.pack")
    assert_type(group.group, Group)
    assert_type(group.jobs, list[Job])
    assert_type(pgbeat.run_direct("shop.order", lane="gpu", timeout=1), Any)
    assert_type(pgbeat.lanes.set_rate("gpu", "10/minute", for_="10 minutes"), Lane)
    with pgbeat.in_transaction(session):
        resize.delay(17)


async def submit_async(session: AsyncSession) -> None:
    """Makes jobs in an event loop."""
    assert_type(await aio.submit("shop.order", lane="gpu", connection=session), Job)
    assert_type(await aio.submit_many(["shop.order"]), list[str])
    await aio.result("e3c4f1a0-0000-4000-8000-000000000000", timeout=1)
    async with pgbeat.in_transaction(session, app), pgbeat.finish(session) as same:
        assert_type(same, AsyncSession)


def on_condition(sender: type[pgbeat.Launcher], **kwargs: Any) -> None:
    """Hears of a condition."""


def run(scheduler: pgbeat.Scheduler) -> None:
    """Runs beats, and reads errors."""
    pgbeat.condition_started.connect(on_condition)
    assert_type(scheduler.settings.loop_interval, float)
    with_clock = pgbeat.testing.Scheduler(app, datetime(2027, 1, 1, tzinfo=UTC))
    assert_type(with_clock.advance("2 hours"), datetime)
    assert_type(with_clock.ticks[0].reason, str | None)
    try:
        with_clock.run_due()
    except pgbeat.PgbeatError as error:
        assert_type(error.code, str)


def mistakes() -> None:
    """Has mistakes that a checker must find."""
    pgbeat.sumbit(resize)  # type: ignore[attr-defined]
    pgbeat.submit(resize, run_at="tomorrow")  # type: ignore[arg-type]
    pgbeat.submit(resize, max_attempts="5")  # type: ignore[arg-type]
    pgbeat.submit_many([resize], lanes="gpu")  # type: ignore[call-arg]
    pgbeat.TaskPolicy(template="nightly")  # type: ignore[typeddict-unknown-key]
    pgbeat.submit_group([resize], mode="serial")  # type: ignore[arg-type]
    pgbeat.run_direct(resize)  # type: ignore[call-arg]
    pgbeat.lanes.set_rate("gpu", 10)  # type: ignore[arg-type]
    pgbeat.Snooze(None)  # type: ignore[arg-type]
    JobRequest(argz=[1])  # type: ignore[call-arg]
    _ = pgbeat.submit(resize).stat  # type: ignore[attr-defined]
    pgbeat.finish(engine)  # type: ignore[call-overload]
    pgbeat.launcher(Work)  # type: ignore[type-var]
    pgbeat.missing = 1  # type: ignore[attr-defined]


async def mistakes_in_a_loop() -> None:
    """Has those that a checker must find in an event loop."""
    await aio.submit(resize, lanes="gpu")  # type: ignore[call-arg]
    await aio.submit_group([resize], mode="serial")  # type: ignore[arg-type]
