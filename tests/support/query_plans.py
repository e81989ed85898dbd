"""Explains the statements that are sent all the time, on a database with very many rows.

`python -m tests.support.query_plans benchmarks/plans.md` measures a million jobs, and writes it.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import psycopg
from celery import Celery
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, event

from pgbeat.access.actors import Actor
from pgbeat.beat import due
from pgbeat.beat import pruner as retention
from pgbeat.beat.pruner import Pruner
from pgbeat.broker.publishing.publisher import Publisher, publisher
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections
from pgbeat.jobs import dispatch, executions, lifecycle, new_jobs, permissions, rescue, unique_keys
from pgbeat.jobs import due as due_jobs
from pgbeat.jobs import model as jobs
from pgbeat.jobs.executions import ExecutionRecord
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.groups import progress
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.model import Filter
from pgbeat.monitoring import counters, gauges, statistics
from pgbeat.schedules import ticks
from pgbeat.testing.databases import Databases, TemporaryServer
from pgbeat.webhooks import deliveries
from pgbeat.webhooks import outbox as webhook_outbox

#: Tables that grow with what is launched: no statement may go through one.
BIG = {"jobs", "executions", "ticks", "deliveries", "groups"}

# A month's jobs, the newest last: most are schedules', one in twenty a person's.
_BEFORE = """
INSERT INTO pgbeat.schedules (name, task, every, next_run)
SELECT 's' || i, 'shop.task' || i % 40, '1 hour', now() + interval '1 hour'
  FROM generate_series(1, {schedules}) AS i;

INSERT INTO pgbeat.lanes (name, max_running) SELECT 'lane' || i, 10 FROM generate_series(0, 9) i;
UPDATE pgbeat.lanes SET rate_limit = 1000, rate_period = '1 hour' WHERE name = 'lane4';
INSERT INTO pgbeat.workers (id, name, pid) SELECT i, 'w' || i, i FROM generate_series(1, 10) AS i;
INSERT INTO pgbeat.webhooks (id, name, url, secret, events)
SELECT i, 'w' || i, 'http://127.0.0.1:9/', 's', '{{job.run.failed}}'
  FROM generate_series(1, 2) AS i;
"""
_ROWS = """
INSERT INTO pgbeat.groups (id, mode, job_source, created_by, created_at, state, finished_at)
SELECT md5('g' || i)::uuid, CASE WHEN i % 2 = 0 THEN 'sequential' ELSE 'parallel' END, 'user_api',
       'user:' || i % 50, at, CASE WHEN {is_new} THEN 'running' ELSE 'completed' END,
       CASE WHEN NOT {is_new} THEN at END
  FROM generate_series({first} / 200, {last} / 200 - 1) AS i, LATERAL (
       SELECT now() - ({rows} - i * 200) * interval '31 days' / {rows} AS at) AS l;

INSERT INTO pgbeat.jobs
       (id, schedule_id, schedule, due_at, task, args, kwargs, queue, state, job_source, created_by,
        is_system_job, created_at, started_at, finished_at, dispatched_at, run_at, worker, error,
        template, lane, position, attempt, max_attempts, retry_of, retried_by, group_id,
        group_position, unique_key)
SELECT md5(i::text)::uuid, CASE WHEN NOT persons THEN 1 + i % {schedules} END,
       CASE WHEN NOT persons THEN 's' || 1 + i % {schedules} END, at, 'shop.task' || i % 40,
       '[]', '{{}}', 'celery', state, CASE WHEN persons THEN 'user_api' ELSE 'scheduled_task' END,
       CASE WHEN persons THEN 'user:' || i / 20 % 50 ELSE 'system:scheduler:GenericLauncher' END,
       NOT persons, at, CASE WHEN state NOT IN ('pending', 'scheduled', 'paused') THEN at END,
       CASE WHEN state NOT IN ('pending', 'scheduled', 'running', 'paused') THEN at END,
       CASE WHEN state NOT IN ('pending', 'scheduled', 'paused') OR i % 16 = 8 THEN at END,
       CASE WHEN state = 'scheduled' THEN now() + (i % 1000 - 5) * interval '1 minute' END, 'w',
       CASE WHEN state = 'failed' THEN 'ValueError: no' END,
       CASE WHEN i % 3000 = 0 THEN 'report' END,
       CASE WHEN i % 16 = 0 AND state <> 'running' OR i % 800 = 2 THEN 'lane' || i / 16 % 10 END,
       i, CASE WHEN i % 50 = 1 THEN 2 ELSE 1 END, 2,
       CASE WHEN i % 50 = 1 THEN md5((i - 1)::text)::uuid END,
       CASE WHEN i % 50 = 0 AND state = 'failed' THEN md5((i + 1)::text)::uuid END,
       CASE WHEN i % 200 < 10 THEN md5('g' || i / 200)::uuid END,
       CASE WHEN i % 200 < 10 THEN i % 200 END, CASE WHEN i % 10 = 0 THEN 'key' || i END
  FROM (SELECT i, i % 20 = 0 AS persons, now() - ({rows} - i) * interval '31 days' / {rows} AS at,
               CASE WHEN {is_new} THEN CASE
                        WHEN i % 4 = 0 THEN 'pending' WHEN i % 4 = 1 THEN 'scheduled'
                        WHEN i % 100 = 3 THEN 'paused' WHEN i % 4 = 2 THEN 'running'
                        ELSE 'completed' END
                    WHEN i % 25 = 0 THEN 'failed' WHEN i % 100 = 1 THEN 'cancelled'
                    WHEN i % 100 = 2 THEN 'skipped' ELSE 'completed' END AS state
          FROM generate_series({first}, {last} - 1) AS i) AS j;

INSERT INTO pgbeat.executions
       (id, job_id, schedule_id, number, state, worker, worker_id, started_at, finished_at,
        duration_ms)
SELECT md5('e' || id)::uuid, id, schedule_id, 1, state, 'w', 1 + schedule_id % 10, started_at,
       finished_at, 5
  FROM pgbeat.jobs
 WHERE started_at IS NOT NULL AND position >= {first} ORDER BY position;

INSERT INTO pgbeat.ticks (schedule_id, schedule, due_at, decided_at, outcome, job_id, reason)
SELECT schedule_id, schedule, due_at, created_at,
       CASE WHEN position % 10 = 0 THEN 'skipped' ELSE 'launched' END,
       CASE WHEN position % 10 <> 0 THEN id END, CASE WHEN position % 10 = 0 THEN 'no work' END
  FROM pgbeat.jobs WHERE schedule_id IS NOT NULL AND position >= {first} ORDER BY position;

INSERT INTO pgbeat.deliveries (webhook_id, event, payload, state, next_at, created_at, finished_at)
SELECT 1, 'job.run.failed', '{{}}', CASE WHEN {is_new} THEN 'pending' ELSE 'delivered' END,
       CASE WHEN {is_new} THEN now() END, at, CASE WHEN NOT {is_new} THEN at END
  FROM (SELECT now() - ({rows} - i) * interval '31 days' / {rows} AS at
          FROM generate_series({first}, {last} - 1, 4) AS i) AS d;

INSERT INTO kombu_message (visible, payload, queue_id, job_id)
SELECT true, '{{}}', (SELECT min(id) FROM kombu_queue), id FROM pgbeat.jobs
 WHERE state = 'pending' AND dispatched_at IS NOT NULL;
"""
#: The share of jobs that have not ended.
_NEW = 0.03


def fill(dsn: str, rows: int) -> None:
    """Jobs, and as many executions and ticks; a quarter as many deliveries.

    The newest have not ended, and the statistics that plans are made by know nothing of them: so it
    is when much is launched at once.
    """
    schedules, new = max(100, rows // 1000), round(rows * (1 - _NEW) / 200) * 200
    values: dict[str, Any] = {"rows": rows, "schedules": schedules}
    with psycopg.connect(dsn, autocommit=True) as connection:

        def run(script: str, **more: Any) -> None:
            for statement in script.format(**values, **more).split(";\n"):
                if statement.strip():
                    connection.execute(statement.encode())

        for table in BIG:
            connection.execute(
                f"ALTER TABLE pgbeat.{table} SET (autovacuum_enabled = off)".encode()
            )
        run(_BEFORE)
        run(_ROWS, first=0, last=new, is_new="false")
        connection.execute("VACUUM ANALYZE")
        run(_ROWS, first=new, last=rows, is_new="true")


class Scan(NamedTuple):
    """A look at a big table in a plan."""

    kind: str
    table: str
    by: str | None
    #: Rows that it met, those too that it left aside.
    rows: int


class Plan(NamedTuple):
    """What a statement did."""

    statement: str
    scans: list[Scan]
    #: Of the server, of 8 kB; indexes' too.
    pages: int
    #: Of the plan that Postgres would keep for any parameters, if it were the cheaper one.
    kept: list[Scan]
    milliseconds: float


class Explained:
    """Explains all that a connection sends to the big tables."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.plans: list[Plan] = []
        event.listen(connection, "before_cursor_execute", self._note)

    def of(self, what: Callable[..., Any], *args: Any) -> list[Plan]:
        """Returns the plans of what a call sends; it gets the connection last."""
        self.plans = []
        what(*args, self.connection)
        return self.plans

    def _note(self, _: Any, __: Any, statement: str, parameters: Any, ___: Any, many: bool) -> None:
        if many or not any(f"pgbeat.{table}" in statement for table in BIG):
            return
        raw = connections.driver(self.connection)
        inside = raw.info.transaction_status == TransactionStatus.INTRANS
        raw.execute("SAVEPOINT explained" if inside else "BEGIN")
        began = time.perf_counter()
        try:
            [(plan,)] = raw.execute(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}".encode(), parameters
            ).fetchall()
            took = (time.perf_counter() - began) * 1000
            kept = self._kept(raw, statement, parameters, plan[0]["Plan"]["Total Cost"])
        finally:
            raw.execute("ROLLBACK TO explained" if inside else "ROLLBACK")
        scans = list(_scans(plan[0]["Plan"]))
        took = min(took, plan[0]["Planning Time"] + plan[0]["Execution Time"])
        top = plan[0]["Plan"]
        pages = top["Shared Hit Blocks"] + top["Shared Read Blocks"]
        self.plans.append(Plan(statement, scans, pages, kept, took))

    def _kept(self, raw: Any, statement: str, parameters: Any, cost: float) -> list[Scan]:
        """Explains a statement without parameters too, as Postgres may plan a prepared one."""
        if raw.info.server_version < 160000:
            return []
        query = PostgresQuery(Transformer(raw))
        query.convert(statement, parameters)
        result = raw.pgconn.exec_(b"EXPLAIN (GENERIC_PLAN, FORMAT JSON) " + query.query)
        assert result.get_value(0, 0) is not None, result.error_message
        import json

        [plan] = json.loads(result.get_value(0, 0))
        # What planning costs, by choose_custom_plan in Postgres's plancache.c.
        tables = len({node["Alias"] for node in _nodes(plan["Plan"]) if "Alias" in node})
        if plan["Plan"]["Total Cost"] >= cost + 2.5 * (tables + 1):
            return []
        return list(_scans(plan["Plan"]))


def _nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _scans(plan: Mapping[str, Any]) -> Iterator[Scan]:
    for node in _nodes(plan):
        table = node.get("Relation Name")
        # A bitmap's rows are met by its index scans, which have no table.
        if node["Node Type"] == "Bitmap Index Scan":
            table = node["Index Name"].split("_")[0]
        if table not in BIG or not node["Node Type"].endswith("Scan"):
            continue
        met = sum(
            node.get(key, 0)
            for key in ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
        )
        rows = round(met * node.get("Actual Loops", 1))
        yield Scan(node["Node Type"], table, node.get("Index Name"), rows)


def most(plan: Mapping[str, Any]) -> int:
    """Returns the most rows that a node of a plan met, with those that it left aside."""
    met = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Join Filter")
    return max(
        round(sum(float(node.get(key, 0)) for key in met) * float(node.get("Actual Loops", 1)))
        for node in _nodes(plan)
    )


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

    def problems(self, plans: list[Plan]) -> list[str]:
        """Returns what is wrong with the plans of its statements."""
        scans = [scan for plan in plans for scan in (*plan.scans, *plan.kept)]
        # A table of a few pages is best gone through, and there are few groups.
        found = [
            f"goes through {scan.table}"
            for scan in scans
            if scan.kind == "Seq Scan" and (scan.table != "groups" or scan.rows > 20_000)
        ]
        rows = sum(scan.rows for plan in plans for scan in plan.scans)
        pages = sum(plan.pages for plan in plans)
        if rows > self.rows:
            found.append(f"meets {rows} rows of {self.rows}")
        if pages > self.pages:
            found.append(f"touches {pages} pages of {self.pages}")
        return found


def _listing(rows: int = 5000, **which: Any) -> Query:
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


def _groups(world: World, connection: Connection) -> None:
    page = groups.listing(connection, "default")
    groups.progress(connection, [group.id for group in page])
    groups.listing(connection, "default", before=(page[-1].created_at, page[-1].id))


def _round(world: World, connection: Connection) -> None:
    """Runs a step of each kind of pruning, as a dry run."""
    pruner = Pruner(world.settings, dry_run=True)
    for kind in range(len(Pruner.tables)):
        pruner._kind = kind
        pruner._places = pruner._places or [each.start for each in retention._KINDS]
        pruner._scan(connection, kind)


def _keys(world: World, connection: Connection) -> None:
    keys = {f"key{world.rows - n * 10}": timedelta(days=1) for n in range(50)}
    with connections.transaction(connection):
        unique_keys.lock_and_find(connection, "default", keys)


def _create(world: World, connection: Connection) -> None:
    new = [
        new_jobs.NewJob(str(uuid4()), "default", "shop.task1", [], {}, "user_api", "user:1", False,
                    unique_key=str(uuid4()))
        for _ in range(100)
    ]  # fmt: skip
    assert new_jobs.insert(connection, new) == 100


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
        lambda w, c: webhook_outbox.claim(c, namespace="default", worker="b", limit=64), 20_000
    ),
    "beat: a step of pruning each table": Query(_round, 150_000, 200_000),
    "worker: a group goes on": Query(_advance),
    "worker: a lane's free slots": Query(
        lambda w, c: dispatch.dispatch_lane(c, w.publisher, "default", "lane3")
    ),
    "worker: a lane's, with a rate": Query(
        lambda w, c: dispatch.dispatch_lane(c, w.publisher, "default", "lane4")
    ),
    "people: a job by the beginning of its id": Query(_find),
    "people: a job's executions": Query(lambda w, c: executions.of_job(c, w.job(7))),
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
    "people: a person's of a rare state": _listing(10_000, created_by="user:45", state="pending"),
    "people: jobs that are not the system's": _listing(is_system_job=False),
    "people: a schedule's failed jobs": _listing(50_000, schedule_id=26, state="failed"),
    "people: groups": Query(_groups),
    "people: a group's jobs": Query(lambda w, c: groups.members(c, w.group)),
    "people: a schedule's ticks": Query(_history),
    "people: deliveries": Query(_deliveries, 10_000),
    "people: figures of a schedule": Query(lambda w, c: statistics.of_schedule(c, 7)),
    "people: figures of a job": Query(lambda w, c: statistics.of_job(c, w.job(50))),
    "people: figures of all": Query(lambda w, c: statistics.of_all(c, "default"), 100_000, 100_000),
    # Last: they end what the others ask for.
    "worker: 50 executions begin, and fail": Query(_record, pages=50_000),  # it writes, most of all
    "people: 50 jobs are cancelled": Query(_cancel),
    "scrape: what is new is added up": Query(lambda w, c: counters.count_up(c), 200_000, 200_000),
    "scrape: jobs by state": Query(lambda w, c: gauges.jobs(c, "default"), 60_000, 60_000),
    "scrape: lanes": Query(lambda w, c: gauges.lanes(c, "default"), 60_000, 60_000),
    "scrape: deliveries": Query(lambda w, c: gauges.webhooks(c, "default"), 60_000, 60_000),
}


def _nothing() -> None:
    """Does what the tasks do: nothing."""


@contextmanager
def explained(dsn: str, rows: int) -> Iterator[tuple[World, Explained]]:
    """Opens a database that was filled with so many rows, and what explains queries in it."""
    app = Celery("plans", broker=f"pgbeat+{postgres_url(dsn).render_as_string(False)}",
                 set_as_current=False)  # fmt: skip
    for number in range(40):
        app.task(_nothing, name=f"shop.task{number}", shared=False)
    settings = Settings.load(app.conf)
    made: Publisher = publisher(app, settings, lambda: None)
    engine = connections.engine(settings.url, "plans").execution_options(
        isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        yield World(settings, made, rows), Explained(connection)
    app.close()


def _page(found: Mapping[str, list[Plan]], rows: int, version: str) -> str:
    lines = [
        "# Plans of the hot queries",
        "",
        f"Measured on Postgres {version} with {rows:,} jobs of {max(100, rows // 1000):,} "
        f"schedules, as many executions and ticks, {rows // 4:,} deliveries and {rows // 200:,} "
        "groups; the database lies in memory. "
        "`python -m tests.support.query_plans benchmarks/plans.md` writes this page, and "
        "`tests/integration/test_plans.py` holds the plans to it: none goes through a table.",
        "",
        "Time is that of all statements together, planning included. *Reads* are the rows that a "
        "plan meets in the tables that grow, and the index that leads there; those that it meets "
        "and leaves aside count.",
        "",
        "| | ms | statements | reads |",
        "|---|---:|---:|---|",
    ]
    for name, plans in found.items():
        total = sum(plan.milliseconds for plan in plans)
        met: dict[tuple[str, str], int] = {}
        for plan in plans:
            for scan in plan.scans:
                if scan.kind != "Bitmap Heap Scan":
                    key = (scan.table, scan.by or scan.kind)
                    met[key] = met.get(key, 0) + scan.rows
        reads = ", ".join(f"{count:,} by `{index}`" for (_, index), count in met.items() if count)
        lines.append(f"| {name} | {total:.1f} | {len(plans)} | {reads or 'none'} |")
    return "\n".join(lines) + "\n"


def main(path: str, rows: int = 1_000_000) -> None:
    """Writes the page."""
    server = TemporaryServer()
    databases = Databases(server.dsn)
    try:
        with databases.lent() as dsn:
            began = time.perf_counter()
            fill(dsn, rows)
            print(f"filled in {time.perf_counter() - began:.0f} s")
            found: dict[str, list[Plan]] = {}
            with explained(dsn, rows) as (world, plans):
                version = str(connections.driver(plans.connection).info.server_version // 10_000)
                for name, query in QUERIES.items():
                    try:
                        for _ in range(2):  # the second time, what it reads is in memory
                            found[name] = plans.of(query.call, world)
                    except Exception as error:
                        print("FAILED", name, type(error).__name__, str(error)[:1500])
                        connections.driver(plans.connection).rollback()
                        continue
                    print(name, *query.problems(found[name]), sep=" !! ")
                    for plan in found[name]:
                        print(
                            "   ",
                            f"{plan.milliseconds:.1f} ms, {plan.pages} pages",
                            *plan.scans,
                            sep="\n      ",
                        )
                        for scan in plan.kept:
                            if scan.kind == "Seq Scan":
                                print("       KEPT", scan)
            Path(path).write_text(_page(found, rows, version))
    finally:
        databases.close()
        server.remove()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
