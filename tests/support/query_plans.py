"""Explains the statements that are sent all the time, on a database with very many rows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from celery import Celery
from sqlalchemy import Connection, text

from pgbeat.access.actors import Actor
from pgbeat.access.redaction import Redactor
from pgbeat.beat import due
from pgbeat.beat.maintenance.pruner import Pruner
from pgbeat.broker.publishing.publisher import Publisher, publisher
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections
from pgbeat.jobs.checks import permissions
from pgbeat.jobs.explaining import trace_rows, tree_rows
from pgbeat.jobs.flow import batch_members, dispatch, lifecycle
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.groups import progress
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.rescuing import rescue
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows import new_jobs, unique_keys
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.rows.unique_keys import UniqueKey
from pgbeat.jobs.running import executions, steps
from pgbeat.jobs.running.executions import ExecutionRecord
from pgbeat.jobs.states import due as due_jobs
from pgbeat.jobs.states import retries
from pgbeat.monitoring import statistics
from pgbeat.monitoring.metrics import counters, gauges
from pgbeat.schedules import ticks
from pgbeat.web.pages import summaries
from pgbeat.webhooks import deliveries
from pgbeat.webhooks import outbox as webhook_outbox
from pgbeat.webhooks.incidents.recovery import Recovery
from tests.support.databases import connected
from tests.support.explained_plans import Explained, Plan
from tests.support.jobs import ADMIN, new_job

#: A table of as many is best gone through.
_FEW_PAGES = 200


class World(NamedTuple):
    """What the queries ask about, in a database that was filled."""

    settings: Settings
    publisher: Publisher
    rows: int

    def job(self, number: int) -> str:
        """Returns the id of a job; numbers go up with time."""
        from hashlib import md5

        return str(UUID(md5(str(number).encode(), usedforsecurity=False).hexdigest()))

    @property
    def group(self) -> str:
        """Returns the id of a group that runs."""
        from hashlib import md5

        number = f"g{self.rows // 200 - 1}"
        return str(UUID(md5(number.encode(), usedforsecurity=False).hexdigest()))


class Query(NamedTuple):
    """Something that is asked often."""

    call: Callable[[World, Connection], Any]
    #: Rows of big tables that it may meet, and pages that it may touch, however much there is.
    rows: int = 5000
    pages: int = 10_000
    #: What each statement may be estimated at: by default, so that no server would compile it,
    #: even if `jit` were on in our sessions.
    cost: int = 100_000

    def problems(self, plans: list[Plan]) -> list[str]:
        """Returns what is wrong with the plans of its statements."""
        scans = [scan for plan in plans for scan in (*plan.scans, *plan.kept)]
        # A table of a few pages is best gone through, and there are few groups.
        found = [
            f"goes through {scan.table}"
            for scan in scans
            if scan.kind == "Seq Scan"
            and scan.size > _FEW_PAGES
            and (scan.table != "groups" or scan.rows > 20_000)
        ]
        rows = sum(
            scan.rows
            for plan in plans
            for scan in plan.scans
            if scan.size > _FEW_PAGES or scan.by is not None
        )
        pages = sum(plan.pages for plan in plans)
        if rows > self.rows:
            found.append(f"meets {rows} rows of {self.rows}")
        if pages > self.pages:
            found.append(f"touches {pages} pages of {self.pages}")
        cost = max((plan.cost for plan in plans), default=0)
        if cost > self.cost:
            found.append(f"is estimated at {cost:,.0f} of {self.cost:,}")
        return found


def _scraped(gauge: Callable[[Connection, str], object]) -> Callable[[World, Connection], None]:
    def read(world: World, connection: Connection) -> None:
        with connections.transaction(connection):
            connections.configure_transaction(connection, gauges.PLANS)
            gauge(connection, "default")

    return read


# Until autovacuum has seen what has not ended, Postgres may go through all of that for a page.
def _listing(rows: int = 50_000, **which: Any) -> Query:
    def two_pages(world: World, connection: Connection) -> None:
        page = jobs.listing(connection, Filter(**which))
        assert page, which
        last = page[-1]
        jobs.listing(connection, Filter(**which), before=(last.created_at, last.id))

    return Query(two_pages, rows)


def _record(world: World, connection: Connection) -> None:
    """Writes a worker's batch: 50 jobs that begin and end; the last of each half is retried."""
    ids = [world.job(world.rows - 16 * n - 12) for n in range(50)]
    runs = [ExecutionRecord(str(uuid4()), job_id, True, worker="w", worker_id=1) for job_id in ids]
    with connections.transaction(connection):
        executions.record(connection, runs)
    failed = [
        run._replace(is_new=False, state="failed", job_state="failed", error="no") for run in runs
    ]
    with connections.transaction(connection):
        ended = executions.record(connection, failed)
        lifecycle.follow(connection, world.publisher, ended)


def _cancel(world: World, connection: Connection) -> None:
    ids = [world.job(world.rows - 16 * n - 4) for n in range(50)]
    with connections.transaction(connection):
        ended = lifecycle.cancel(connection, world.publisher, ids, by="me", reason="no more")
        lifecycle.follow(connection, world.publisher, ended)


def _advance(world: World, connection: Connection) -> None:
    with connections.transaction(connection):
        progress.advance(connection, [UUID(world.group)])


def _take_due(world: World, connection: Connection) -> None:
    with connections.transaction(connection):
        due_jobs.take(connection, "default")


def _find(world: World, connection: Connection) -> None:
    actor = Actor("user:1", is_admin=True)
    permissions.find(connection, actor, world.job(7)[:8], namespace="default")


def _history(world: World, connection: Connection) -> None:
    page = ticks.history(connection, 7)
    ticks.history(connection, 7, before=(page[-1].due_at, page[-1].id))


def _deliveries(world: World, connection: Connection) -> None:
    page = deliveries.listing(connection, 1)
    deliveries.listing(connection, 1, before=(page[-1].created_at, page[-1].id))


def _chain(world: World, connection: Connection) -> None:
    walk = text("/* through pgbeat.jobs */ SELECT * FROM pgbeat.retry_chain(CAST(:id AS uuid))")
    connection.execute(walk, {"id": world.job(50)})
    retries.chain(connection, UUID(world.job(50)))
    retries.last_attempt(connection, world.job(50))


def _tree(world: World, connection: Connection) -> None:
    job = jobs.get(connection, world.job(50))
    tree_rows.read(connection, job)
    redactor = Redactor(ADMIN, {}, {})
    known = steps.of_job(connection, redactor, job)
    trace_rows.of_job(connection, redactor, job, connections.now(connection), known)


def _groups(world: World, connection: Connection) -> None:
    page = groups.listing(connection, "default")
    groups.progress(connection, [group.id for group in page])
    groups.listing(connection, "default", before=(page[-1].created_at, page[-1].id))


def pruned(world: World, connection: Connection, *names: str) -> None:
    """Runs a step of each kind of pruning, or of these, and takes it back."""
    pruner = Pruner(world.settings)
    pruner._begin(connection)
    driver = connections.driver(connection)
    driver.execute("BEGIN")
    for kind, name in enumerate(Pruner.names):
        if name in names or not names:
            pruner._kind = kind
            pruner._scan(connection, kind)
    driver.execute("ROLLBACK")


def _keys(world: World, connection: Connection) -> None:
    keys = {
        UniqueKey("shop.task1", f"key{world.rows - n * 10}"): timedelta(days=1) for n in range(50)
    }
    with connections.transaction(connection):
        unique_keys.lock_and_find(connection, "default", keys)


def _create(world: World, connection: Connection) -> None:
    new = [new_job("shop.task1", unique_key=str(uuid4())) for _ in range(100)]
    assert new_jobs.insert(connection, new) == 100


# Half of them share a key.
_MEMBERS = text(
    """
    INSERT INTO pgbeat.jobs (id, task, args, kwargs, job_source, created_by, is_system_job, message)
    SELECT gen_random_uuid(), 'shop.batch', '[]', '{}', 'user_api', 'test', false,
           jsonb_build_object('batch', jsonb_build_object(
               'key', CASE WHEN i % 2 = 0 THEN '' ELSE CAST(i AS text) END, 'size', 100,
               'after', 3600), 'payload', repeat('x', 1000))
      FROM generate_series(1, 6000) AS i
    """
)


def _start_batch(world: World, connection: Connection) -> None:
    with suppress(_UndoneError), connections.transaction(connection):
        connection.execute(_MEMBERS)
        started = batch_members.BatchStarter("default").start(connection)
        _, others = batch_members.take(connection, str(started[0].id))
        assert len(others) == 99
        raise _UndoneError


class _UndoneError(Exception):
    """Rolls back what a query needs."""


QUERIES: dict[str, Query] = {
    "beat: what is due next": Query(lambda w, c: due.snapshot(c)),
    "beat: schedules' unfinished jobs": Query(lambda w, c: jobs.unfinished(c, range(1, 100))),
    "beat: 100 jobs are made": Query(_create),
    "beat: 50 unique keys": Query(_keys),
    "beat: jobs whose time has come": Query(_take_due),
    "beat: lanes in which somebody waits": Query(lambda w, c: lanes.to_dispatch(c, "default")),
    "beat: groups in which nothing moves": Query(lambda w, c: progress.stuck(c, "default")),
    "beat: what the dead left": Query(
        lambda w, c: rescue.rescue(c, w.publisher, w.settings), 10_000
    ),
    "beat: deliveries that are due": Query(
        lambda w, c: webhook_outbox.claim(
            c,
            origin=webhook_outbox.Origin("default", ""),
            worker="b",
            room=webhook_outbox.DeliveryRoom(384, 256, 64),
        ),
        20_000,
    ),
    "beat: whether what fails is well again": Query(
        lambda w, c: Recovery("default").look(c), 10_000, 20_000
    ),
    "beat: a step of pruning each table": Query(pruned, 150_000, 200_000),
    "worker: a group goes on": Query(_advance),
    "worker: a lane's free slots": Query(
        lambda w, c: dispatch.dispatch_lane(c, w.publisher, "default", "lane3")
    ),
    "worker: a lane's, with a rate": Query(
        lambda w, c: dispatch.dispatch_lane(c, w.publisher, "default", "lane4")
    ),
    "people: a job by the beginning of its id": Query(_find),
    "people: a job's executions": Query(lambda w, c: executions.of_job(c, w.job(7))),
    "people: the newest executions of all": Query(
        lambda w, c: executions.of_all(c, "default", limit=1000), 10_000, 60_000
    ),
    "people: jobs, two pages": _listing(),
    "people: jobs of a state": _listing(state="failed"),
    "people: jobs of a rare state": _listing(state="paused"),
    "people: jobs of a task": _listing(task="shop.task7"),
    "people: jobs of a schedule": _listing(schedule_id=7),
    "people: jobs of a lane": _listing(lane="lane7"),
    "people: jobs of a template": _listing(template="report"),
    "people: jobs of a person": _listing(created_by="user:7"),
    "people: failed jobs of a person": _listing(created_by="user:45", state="failed"),
    "people: a person's jobs of a task": _listing(created_by="user:45", task="shop.task20"),
    "people: a person's of a rare state": _listing(created_by="user:45", state="pending"),
    "people: jobs that are not the system's": _listing(is_system_job=False),
    "people: a schedule's failed jobs": _listing(schedule_id=26, state="failed"),
    "people: groups": Query(_groups, cost=300_000),
    "people: a group's jobs": Query(lambda w, c: groups.members(c, w.group)),
    "people: a schedule's ticks": Query(_history),
    "people: deliveries": Query(_deliveries, 10_000),
    "people: figures of a schedule": Query(lambda w, c: statistics.of_schedule(c, 7)),
    "people: figures of a job": Query(lambda w, c: statistics.of_job(c, w.job(50))),
    "people: a job's chain of retries": Query(_chain),
    "people: a job's tree": Query(_tree),
    "people: figures of all": Query(
        lambda w, c: statistics.of_all(c, "default"), 100_000, 100_000, 300_000
    ),
    # Last: they end what the others ask for.
    "worker: 50 executions begin, and fail": Query(_record, pages=50_000),  # it writes, most of all
    # What `_listing` says holds for it, too.
    "people: the console's first page": Query(
        lambda w, c: summaries.summary(c, "default", lambda task, error: error), 60_000, 20_000
    ),
    "people: 50 jobs are cancelled": Query(_cancel),
    "scrape: what is new is added up": Query(
        lambda w, c: counters.count_up(c), 200_000, 200_000, 300_000
    ),
    "scrape: jobs by state": Query(_scraped(gauges.jobs), 110_000, 60_000),
    "scrape: lanes": Query(_scraped(gauges.lanes), 60_000, 60_000),
    "scrape: deliveries": Query(_scraped(gauges.webhooks), 60_000, 60_000),
    "beat, worker: a batch starts among 6,000 members": Query(_start_batch, pages=200_000),
}


def _nothing() -> None:
    """Does what the tasks do: nothing."""


@contextmanager
def explained(dsn: str, rows: int) -> Iterator[tuple[World, Explained]]:
    """Opens a database that was filled with so many rows, and what explains queries in it."""
    app = Celery(
        "plans", broker=f"pgbeat+{postgres_url(dsn).render_as_string(False)}", set_as_current=False
    )
    for number in range(40):
        app.task(_nothing, name=f"shop.task{number}", shared=False)
    settings = Settings.load(app.conf)
    made: Publisher = publisher(app, settings, lambda: None)
    with connected(dsn) as connection:
        yield World(settings, made, rows), Explained(connection)
    app.close()
