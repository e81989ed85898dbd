"""What is deleted by age and number, what stays, and how little a step reads."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from sqlalchemy import Connection, event

from pgbeat.beat.maintenance import pruner as retention
from pgbeat.beat.maintenance.pruned_rows import KINDS
from pgbeat.beat.maintenance.pruner import Pruner
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections
from tests.support import old_rows
from tests.support.old_rows import audited, jobs, left, schedule, ticks
from tests.support.processes import until
from tests.support.rows import (
    Sql,
    ago,
    make_delivery,
    make_group,
    make_job,
    make_schedule,
    make_stack,
    make_webhook,
)
from tests.support.schedulers import Beat

Prune = Callable[..., Counter[str]]


@pytest.fixture
def settings(database: str) -> Settings:
    return Settings(postgres_url(database), retention_days=30, retention_count=3)


@pytest.fixture
def prune(connection: Connection, settings: Settings) -> Prune:
    """Prunes a whole round, by settings that may differ; what it deleted."""

    def prune(*, dry_run: bool = False, **changed: Any) -> Counter[str]:
        return old_rows.prune(connection, replace(settings, **changed), dry_run=dry_run)

    return prune


def test_the_newest_of_a_schedule_or_the_young_whichever_is_more(prune: Prune, sql: Sql) -> None:
    rare, often = schedule(sql, "rare"), schedule(sql, "often")
    # Three are kept however old, and more than three if they are young.
    jobs(sql, [90, 80, 70, 60, 50], rare)
    jobs(sql, [41, 31, 29, 21, 11, 1], often)
    ticks(sql, [95, 85, 75, 65, 55], rare)
    ticks(sql, [42, 32, 22, 12, 6, 2], often)
    deleted = prune()
    assert left(sql, "jobs") == [70, 60, 50, 29, 21, 11, 1]
    assert left(sql, "executions", "started_at") == [70, 60, 50, 29, 21, 11, 1]
    assert left(sql, "ticks", "decided_at") == [75, 65, 55, 22, 12, 6, 2]
    assert +deleted == {"ticks": 4, "jobs": 4, "executions": 4}


def test_what_has_no_schedule_goes_by_its_age(prune: Prune, sql: Sql) -> None:
    jobs(sql, [40, 31, 29])
    # A schedule that is gone keeps nothing for ever.
    gone = schedule(sql)
    jobs(sql, [50, 28], gone)
    ticks(sql, [50, 28], gone)
    sql("DELETE FROM pgbeat.schedules")
    prune()
    assert left(sql, "jobs") == [29, 28]
    assert left(sql, "executions", "started_at") == [29, 28]
    assert left(sql, "ticks", "decided_at") == [28]


@pytest.mark.parametrize("state", ["pending", "scheduled", "running", "paused"])
def test_what_has_not_ended_stays(prune: Prune, sql: Sql, state: str) -> None:
    jobs(sql, [400], state=state)
    prune()
    assert left(sql, "jobs") == [400]


def test_age_counts_from_the_end(prune: Prune, sql: Sql) -> None:
    (job,) = jobs(sql, [40])
    sql("UPDATE pgbeat.jobs SET finished_at = now() - interval '29 days' WHERE id = %s", job)
    prune()
    assert left(sql, "jobs") == [40]


def test_a_group_stays_whole_while_it_runs(prune: Prune, sql: Sql) -> None:
    ids = []
    for state, finished in (("running", None), ("completed", ago(sql, "35 days"))):
        times = {"created_at": ago(sql, "50 days"), "finished_at": finished}
        ids.append(group := make_group(sql, state=state, **times))
        jobs(sql, [49, 48], group_id=group)
    looked = prune(dry_run=True)
    assert (looked["jobs"], looked["groups"]) == (2, 1)
    prune()
    assert sql("SELECT DISTINCT group_id::text FROM pgbeat.jobs") == [(ids[0],)]
    assert sql("SELECT id::text FROM pgbeat.groups") == [(ids[0],)]


def test_a_dry_run_counts_what_goes(prune: Prune, sql: Sql) -> None:
    """What belongs to a job goes with it, though the job is still there when a dry run looks."""
    ended = {"created_at": ago(sql, "50 days"), "finished_at": ago(sql, "35 days")}
    of_schedule, alone = (make_group(sql, state="completed", **ended) for _ in range(2))
    kept = jobs(sql, [49, 48], schedule(sql), group_id=of_schedule)  # its newest
    for job in (*kept, *jobs(sql, [49, 48], group_id=alone)):
        sql(
            "INSERT INTO pgbeat.dependencies (job_id, parent_id, created_at) "
            "VALUES (%s, gen_random_uuid(), now() - interval '47 days')",
            job,
        )
        sql(
            "INSERT INTO pgbeat.steps (root_id, job_id, namespace, kind, name, n, began_at) "
            "VALUES (%s, %s, 'default', 'wait', 'a', 1, now() - interval '47 days')",
            job,
            job,
        )
        make_stack(sql, job, str(uuid4()), asked_at=ago(sql, "47 days"))
    looked = +prune(dry_run=True)
    assert looked == +prune()
    two = dict.fromkeys(("jobs", "executions", "dependencies", "steps", "stacks"), 2)
    assert looked == two | {"groups": 1}


def test_stacks_go_with_their_job(prune: Prune, sql: Sql) -> None:
    kept = make_job(sql, "running")
    for job_id in (kept, uuid4()):
        make_stack(sql, job_id, str(uuid4()), asked_at=ago(sql, "40 days"))
    assert prune()["stacks"] == 1
    assert sql("SELECT job_id::text FROM pgbeat.stacks") == [(kept,)]
    sql("ALTER TABLE pgbeat.stacks RENAME TO later")  # as in the version before
    assert prune()["stacks"] == 0


def test_edges_go_with_the_job_that_depends(prune: Prune, sql: Sql) -> None:
    old = "INSERT INTO pgbeat.dependencies (job_id, parent_id, created_at) VALUES "
    sql(old + "(gen_random_uuid(), gen_random_uuid(), now() - interval '40 days')")
    [(kept,)] = sql("SELECT pgbeat.submit('tests.add')")
    sql(old + "(%s, gen_random_uuid(), now() - interval '40 days')", str(kept))
    assert prune()["dependencies"] == 1
    assert sql("SELECT job_id FROM pgbeat.dependencies") == [(kept,)]


def test_deliveries_go_by_age_unless_they_are_under_way(prune: Prune, sql: Sql) -> None:
    own, other = make_webhook(sql), make_webhook(sql, namespace="other")
    for webhook, age, state in (
        (own, 40, "delivered"),
        (own, 39, "pending"),
        (own, 29, "failed"),
        (other, 41, "failed"),
    ):
        at = ago(sql, f"{age} days")
        ended = {} if state == "pending" else {"finished_at": at}
        make_delivery(sql, webhook, state, created_at=at, **ended)
    prune()
    assert left(sql, "deliveries") == [41, 39, 29]


def test_executions_whose_job_was_deleted_by_hand(prune: Prune, sql: Sql) -> None:
    jobs(sql, [40, 31, 20])
    sql("DELETE FROM pgbeat.jobs")
    assert prune()["executions"] == 2
    assert left(sql, "executions", "started_at") == [20]


def test_each_namespace_prunes_its_own(prune: Prune, sql: Sql) -> None:
    own, other = schedule(sql), schedule(sql, namespace="other")
    jobs(sql, [60, 59], namespace="other")
    ticks(sql, [60, 59, 58, 57, 56], other)
    ticks(sql, [50, 49, 48, 47], own)
    prune()
    assert left(sql, "jobs") == [60, 59]
    assert left(sql, "ticks", "decided_at") == [60, 59, 58, 57, 56, 49, 48, 47]
    prune(namespace="other")
    assert left(sql, "jobs") == []
    assert left(sql, "ticks", "decided_at") == [58, 57, 56, 49, 48, 47]


def test_ticks_without_a_schedule_may_be_any_namespaces(prune: Prune, sql: Sql) -> None:
    sql("INSERT INTO pgbeat.namespaces (name, timezone, retention_days) VALUES ('o', 'UTC', 90)")
    ticks(sql, [100, 80, 20], 1)
    prune()
    assert left(sql, "ticks", "decided_at") == [80, 20]
    sql("UPDATE pgbeat.namespaces SET retention_days = 0")
    prune(retention_days=10)
    assert left(sql, "ticks", "decided_at") == [80, 20]


def test_nothing_is_deleted_where_everything_is_kept(
    connection: Connection, settings: Settings, sql: Sql
) -> None:
    jobs(sql, [4000])
    assert Pruner(replace(settings, retention_days=0)).step(connection) == 0
    assert left(sql, "jobs") == [4000]


def test_a_count_of_none_leaves_the_age(prune: Prune, sql: Sql) -> None:
    key = schedule(sql)
    jobs(sql, [32, 31, 20], key)
    ticks(sql, [32, 31, 20], key)
    prune(retention_count=0)
    assert left(sql, "jobs") == left(sql, "ticks", "decided_at") == [20]


def test_steps_are_small_and_what_was_kept_is_not_read_again(
    connection: Connection, settings: Settings, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 10)
    one, other = schedule(sql, "one"), schedule(sql, "other")
    sql(
        """
        INSERT INTO pgbeat.jobs (id, schedule_id, task, state, job_source, created_by,
            is_system_job, created_at, finished_at)
        SELECT gen_random_uuid(), CASE WHEN n %% 2 = 0 THEN %s ELSE %s END, 't', 'completed',
               'system', 'tests', true, at, at
          FROM (SELECT n, now() - interval '40 days' + n * interval '1 minute' AS at
                  FROM generate_series(0, 99) AS n) AS a
        """,
        one,
        other,
    )
    pruner = Pruner(replace(settings, retention_count=30))
    steps = []
    while looked := pruner.step(connection):
        steps.append(looked)
    assert steps == [10] * 10
    # 30 of each are kept: 20 of the older ones of each went.
    assert pruner.deleted["jobs"] == 40
    assert len(left(sql, "jobs")) == 60

    # The next round begins where that ended: a job, and its execution.
    jobs(sql, [31], one)
    assert [pruner.step(connection) for _ in range(3)] == [1, 1, 0]
    # After an hour it begins with the oldest: one more has 30 before it.
    monkeypatch.setattr(retention, "_AGAIN", 0.0)
    steps = []
    while looked := pruner.step(connection):
        steps.append(looked)
    assert steps == [10] * 6 + [1, 1]
    assert pruner.deleted["jobs"] == 41


def test_those_made_in_one_moment_stay_together(prune: Prune, sql: Sql) -> None:
    key = schedule(sql)
    jobs(sql, [40] * 7, key)
    sql("UPDATE pgbeat.jobs SET created_at = (SELECT min(created_at) FROM pgbeat.jobs)")
    jobs(sql, [38, 37], key)
    prune()
    assert left(sql, "jobs") == [40] * 7 + [38, 37]
    jobs(sql, [36], key)
    prune()
    assert left(sql, "jobs") == [38, 37, 36]


def test_a_row_that_somebody_holds_is_for_later(
    prune: Prune, connection: Connection, settings: Settings, sql: Sql
) -> None:
    held, _ = jobs(sql, [40, 39])
    pruner = Pruner(settings)
    with connections.engine(settings.url, "tests").begin() as other:
        other.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
        other.exec_driver_sql("SELECT FROM pgbeat.jobs WHERE id = %s FOR UPDATE", (held,))
        assert pruner.step(connection) == 2
        assert left(sql, "jobs") == [40]
    prune()
    assert left(sql, "jobs") == []


def test_a_step_is_one_statement_a_table(
    connection: Connection, settings: Settings, sql: Sql
) -> None:
    jobs(sql, [40] * 5)
    seen: list[str] = []
    event.listen(connection, "before_cursor_execute", lambda *args: seen.append(args[2]))
    assert Pruner(settings).step(connection) == 5
    # Besides what its role may do to the audit and whether there are stacks: ticks, of which there
    # are none, and jobs.
    assert len(seen) == 4


def test_the_audit_has_an_age_of_its_own(
    prune: Prune,
    connection: Connection,
    settings: Settings,
    sql: Sql,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "BATCH", 10)
    jobs(sql, [400])
    audited(sql, [500.0] * 25 + [366, 364, 40])
    audited(sql, [600], "other")
    kept = replace(settings, retention_days=0)
    assert prune(retention_days=0, dry_run=True)["audit"] == 26
    pruner, steps = Pruner(kept), []
    while looked := pruner.step(connection):
        steps.append(looked)
    assert steps == [10, 10, 6]
    assert pruner.deleted.total() == 26
    assert left(sql, "audit", "at") == [600, 364, 40]
    assert left(sql, "jobs") == [400]
    prune(audit_days=39)
    assert left(sql, "audit", "at") == [600]


def test_the_audit_may_be_kept_for_ever(prune: Prune, sql: Sql) -> None:
    audited(sql, [4000])
    jobs(sql, [40])
    prune(audit_days=0)
    assert (left(sql, "audit", "at"), left(sql, "jobs")) == ([4000], [])


def test_a_step_in_the_audit_goes_by_an_index(connection: Connection, sql: Sql) -> None:
    sql(
        "INSERT INTO pgbeat.audit (namespace, at, actor, origin, verb, kind, subject) "
        "SELECT CASE n % 50 WHEN 0 THEN 'default' ELSE 'other' END, "
        "now() - (50000 - n) * interval '1 hour', 'user:a', 'cli', 'pause', 'lane', 'l' "
        "FROM generate_series(1, 50000) AS n"
    )
    sql("ANALYZE pgbeat.audit")
    [kind] = [kind for kind in KINDS if kind.name == "audit"]
    values = {"namespace": "default", "at_0": 0, "batch": 500, "seconds": 365 * 86_400}
    query = kind.scanned.compile(connection)
    plan = connection.exec_driver_sql(
        f"EXPLAIN (ANALYZE, BUFFERS, COSTS off) {query}", query.construct_params(values)
    )
    said = "\n".join(plan.scalars())
    assert "Index Scan using audit_newest" in said
    assert "Sort" not in said


def test_an_idle_beat_goes_on_until_the_round_is_finished(
    app: Celery, beat: Beat, sql: Sql
) -> None:
    """Without waiting for its next look; what falls due in the meantime is decided in between."""
    sql(
        "INSERT INTO pgbeat.jobs (id, task, state, job_source, created_by, is_system_job, "
        "created_at, started_at, finished_at) SELECT gen_random_uuid(), 't', 'completed', "
        "'system', 'tests', true, at, at, at "
        "FROM (SELECT now() - interval '1 year' + n * interval '1 second' AS at "
        "FROM generate_series(1, 20000) AS n) AS a"
    )
    app.conf.pgbeat_loop_interval = 5.0
    scheduler = beat()
    remaining = "SELECT count(*) FROM pgbeat.jobs WHERE schedule_id IS NULL"
    deadline = time.monotonic() + 30  # at one batch a look, it would be more than a minute
    looks, added, left = 0, False, 0
    while sql(remaining) != [(0,)] and time.monotonic() < deadline:
        scheduler.tick()
        looks += 1
        if sql(remaining)[0][0] < 15_000 and not added and not left:
            added = True
            make_schedule(sql, due="0")
        elif added and sql("SELECT count(*) FROM pgbeat.ticks") == [(1,)]:
            added = False
            left = sql(remaining)[0][0]
    assert sql(remaining) == [(0,)]
    # No look deletes more than a batch, so none delays what is due for long.
    assert looks >= 20_000 / retention.BATCH
    assert left > 10_000


def test_a_beat_that_is_never_idle_prunes_too(beat: Beat, sql: Sql) -> None:
    long_ago = ago(sql, "1 year")
    make_job(sql, "completed", created_at=long_ago, started_at=long_ago, finished_at=long_ago)
    make_schedule(sql, every="1 microsecond", due="0")
    scheduler = beat()

    def is_gone() -> bool:
        scheduler.tick()
        return sql("SELECT count(*) FROM pgbeat.jobs WHERE schedule_id IS NULL") == [(0,)]

    until(is_gone, 30)
