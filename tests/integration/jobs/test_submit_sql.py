"""`pgbeat.submit` in SQL: by any language and by triggers; beat makes the messages."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from celery import Celery

import pgbeat
from pgbeat.beat.scheduler import Scheduler
from tests.support.command_line import Sql
from tests.support.rows import make_lane

Beat = Callable[..., Scheduler]


def jobs(sql: Sql, columns: str) -> list[tuple[Any, ...]]:
    return sql(f"SELECT {columns} FROM pgbeat.jobs ORDER BY created_at, args")


def messages(sql: Sql) -> list[Any]:
    return [job_id for (job_id,) in sql("SELECT job_id FROM kombu_message ORDER BY id")]


def test_beat_makes_the_message(sql: Sql, beat: Beat) -> None:
    [(job_id,)] = sql("""SELECT pgbeat.submit('tests.add', '[1]', '{"y": 3}')""")
    assert jobs(sql, "id, state, task, args, kwargs, run_at = created_at, dispatched_at") == [
        (job_id, "scheduled", "tests.add", [1], {"y": 3}, True, None)
    ]
    beat().run_due()
    assert jobs(sql, "state, queue") == [("pending", None)]
    assert messages(sql) == [job_id]


def test_its_defaults_are_those_of_python(app: Celery, sql: Sql) -> None:
    pgbeat.submit("tests.add", app=app)
    columns = (
        "to_jsonb(j) - '{id,state,queue,run_at,created_by,created_at,dispatched_at,position}'"
        "::text[] FROM pgbeat.jobs j"
    )
    python = sql(f"SELECT {columns}")
    sql("DELETE FROM pgbeat.jobs")
    sql("SELECT pgbeat.submit('tests.add')")
    assert sql(f"SELECT {columns}") == python
    assert jobs(sql, "created_by = 'user:' || session_user") == [(True,)]


def test_the_longest_wait_for_a_retry_is_no_shorter_than_the_first(app: Celery, sql: Sql) -> None:
    pgbeat.submit("tests.add", retry_base="2 hours", app=app)
    sql("SELECT pgbeat.submit('tests.add', retry_base => '2 hours')")
    assert jobs(sql, "retry_base, retry_cap") == [(timedelta(hours=2),) * 2] * 2


def test_a_tag_is_kept_once(app: Celery, sql: Sql) -> None:
    pgbeat.submit("tests.add", tags=["b", "a", "b"], app=app)
    sql("SELECT pgbeat.submit('tests.add', tags => '{b,a,b}')")
    assert jobs(sql, "tags") == [(["b", "a"],)] * 2


def test_all_that_it_takes(sql: Sql) -> None:
    make_lane(sql, "gpu")
    sql(
        """
        SELECT pgbeat.submit('tests.add', queue => 'q', options => '{"priority": 2}',
            lane => 'gpu', priority => 5, tags => '{a,b}', resources => '{"gpu": 1}',
            max_attempts => 7, retry_base => '2 s', retry_cap => '9 s', unique_key => 'k',
            unique_for => '1 h', requires_approval => true, description => 'd',
            labels => '{"team": "x"}', metadata => '{"n": 1}', created_by => 'user:bob')
        """
    )
    assert jobs(
        sql,
        "queue, options, lane, priority, tags, resources, max_attempts, retry_base, retry_cap, "
        "unique_key, state, awaits_approval, requires_approval, description, labels, metadata, "
        "created_by, job_source, is_system_job",
    ) == [
        (
            "q",
            {"priority": 2},
            "gpu",
            5,
            ["a", "b"],
            {"gpu": 1},
            7,
            timedelta(seconds=2),
            timedelta(seconds=9),
            "k",
            "paused",
            True,
            True,
            "d",
            {"team": "x"},
            {"n": 1},
            "user:bob",
            "user_api",
            False,
        )
    ]


def test_a_lanes_job_waits_in_line(sql: Sql, database: str) -> None:
    make_lane(sql, "gpu")
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute("LISTEN pgbeat_lanes")
        sql("SELECT pgbeat.submit('tests.add', lane => 'gpu')")
        heard = [each.payload for each in listener.notifies(timeout=5, stop_after=1)]
    assert heard == ["default/gpu"]
    assert jobs(sql, "state, run_at, dispatched_at") == [("pending", None, None)]


def test_beat_is_notified(sql: Sql, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute("LISTEN pgbeat_schedules")
        sql("SELECT pgbeat.submit('tests.add')")
        heard = [each.payload for each in listener.notifies(timeout=5, stop_after=1)]
    assert heard == ["jobs"]


def test_it_waits_for_its_time(sql: Sql, beat: Beat) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    sql("SELECT pgbeat.submit('tests.add', run_at => %s)", later)
    beat().run_due()
    assert jobs(sql, "state, run_at") == [("scheduled", later)]


def test_a_key_is_taken_once_in_both_languages(app: Celery, sql: Sql) -> None:
    first = pgbeat.submit("tests.add", unique_key="k", app=app)
    assert sql("SELECT pgbeat.submit('tests.add', unique_key => 'k')") == [(first.id,)]
    [(other,)] = sql("SELECT pgbeat.submit('tests.add', unique_key => 'l')")
    assert pgbeat.submit("tests.add", unique_key="l", app=app).id == other
    sql("UPDATE pgbeat.jobs SET state = 'cancelled', finished_at = now()")
    [(again,)] = sql("SELECT pgbeat.submit('tests.add', unique_key => 'k', unique_for => '1 h')")
    assert again == first.id
    [(fresh,)] = sql("SELECT pgbeat.submit('tests.add', unique_key => 'k')")
    assert fresh != first.id


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def test_what_is_wrong_is_refused(sql: Sql) -> None:
    cases: list[tuple[str, str, str]] = [
        ("''", "task", "malformed"),
        ("NULL", "task", "malformed"),
        ("'t', '{}'", "args", "malformed"),
        ("'t', NULL", "args", "malformed"),
        ("'t', kwargs => '[]'", "kwargs", "malformed"),
        ("'t', options => '1'", "options", "malformed"),
        ("'t', namespace => 'a b'", "namespace", "malformed"),
        ("'t', priority => 256", "priority", "out_of_range"),
        ("'t', max_attempts => 0", "max_attempts", "out_of_range"),
        ("'t', unique_key => ' '", "unique_key", "malformed"),
        ("'t', unique_for => '1 h'", "unique_key", "required"),
        ("'t', retry_base => '-1 s'", "retry_base", "out_of_range"),
        ("'t', retry_base => NULL", "retry_base", "out_of_range"),
        ("'t', retry_cap => '200 years'", "retry_cap", "out_of_range"),
        ("'t', retry_base => '2 h', retry_cap => '1 h'", "retry_cap", "out_of_range"),
        ("'t', unique_key => 'k', unique_for => '-1 day'", "unique_for", "out_of_range"),
        ("'t', unique_key => 'k', unique_for => '300000 years'", "unique_for", "out_of_range"),
        ("'t', tags => NULL", "tags", "malformed"),
        ("'t', tags => '{a,NULL}'", "tags", "malformed"),
        ("'t', tags => '{{a},{b}}'", "tags", "malformed"),
        ("'t', tags => '{\" \"}'", "tags", "malformed"),
        ("'t', requires_approval => NULL", "requires_approval", "malformed"),
        ("'t', labels => NULL", "labels", "malformed"),
        ("'t', metadata => NULL", "metadata", "malformed"),
        ("'t', created_by => NULL", "created_by", "malformed"),
        (
            "'t', depends_on => array_fill(gen_random_uuid(), '{10001}')",
            "depends_on",
            "out_of_range",
        ),
        (f"'t', '{nested(101)}'", "args", "malformed"),
        (f"'t', kwargs => '{{\"a\": {nested(100)}}}'", "kwargs", "malformed"),
        (f"'t', options => '{{\"a\": {nested(100)}}}'", "options", "malformed"),
        (f"'t', metadata => '{{\"a\": {nested(100)}}}'", "metadata", "malformed"),
        ("'t', run_at => 'infinity'", "run_at", "out_of_range"),
        ("'t', run_at => '10000-01-01'", "run_at", "out_of_range"),
        ("'t', resources => NULL", "resources", "malformed"),
        ("'t', resources => '[1]'", "resources", "malformed"),
        *(
            (f"'t', resources => '{{\"gpu\": {amount}}}'", "resources", "malformed")
            for amount in ("null", '"1200 t"', "true", "[]", "[1]", "{}", "-1", "0", "1e12")
        ),
        ("""'t', resources => '{" ": 1}'""", "resources", "malformed"),
        ("'t', lane => 'nope'", "lane", "unknown"),
        ("""'t', labels => '{"team": 5}'""", "labels", "malformed"),
    ]
    for arguments, field, code in cases:
        with pytest.raises(psycopg.errors.CheckViolation, match=r"^job") as caught:
            sql(f"SELECT pgbeat.submit({arguments})")
        assert (caught.value.diag.column_name, caught.value.diag.constraint_name) == (field, code)
        assert jobs(sql, "id") == []


TRIGGER = """
    CREATE TABLE orders (id bigint PRIMARY KEY, state text NOT NULL);
    CREATE FUNCTION send_receipt() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pgbeat.submit('tests.note', jsonb_build_array(NEW.id::text),
            unique_key => 'receipt/' || NEW.id);
        RETURN NULL;
    END
    $$;
    CREATE TRIGGER send_receipt AFTER INSERT OR UPDATE OF state ON orders FOR EACH ROW
        WHEN (NEW.state = 'paid') EXECUTE FUNCTION send_receipt();
"""


def test_a_trigger_submits_in_its_transaction(sql: Sql, database: str, beat: Beat) -> None:
    sql(TRIGGER)
    sql("INSERT INTO orders VALUES (1, 'new'), (2, 'paid')")
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE orders SET state = 'paid' WHERE id = 1")
        connection.rollback()
        connection.execute("UPDATE orders SET state = 'paid' WHERE id = 2")
        connection.commit()
    assert jobs(sql, "args, unique_key") == [(["2"], "receipt/2")]
    beat().run_due()
    assert len(messages(sql)) == 1


def test_the_rights_that_it_needs(sql: Sql) -> None:
    role = f"shop_{uuid4().hex[:8]}"
    submit = f"SET ROLE {role}; SELECT pgbeat.submit('tests.add'"

    def refused(what: str, more: str = "") -> bool:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match=what):
            sql(f"{submit}{more})")
        sql("RESET ROLE")
        return True

    sql(f"CREATE ROLE {role}")
    try:
        assert refused("schema pgbeat")
        sql(f"GRANT USAGE ON SCHEMA pgbeat TO {role}")
        assert refused("submit_as_owner")
        sql(f"GRANT SELECT, INSERT ON pgbeat.unfinished_jobs TO {role}")
        sql(f"{submit}); RESET ROLE")
        assert refused("lanes", ", lane => 'l'")
        assert refused("ended_jobs", ", unique_key => 'k'")
        sql(f"GRANT SELECT ON pgbeat.lanes, pgbeat.ended_jobs TO {role}")
        sql(f"{submit}, unique_key => 'k'); RESET ROLE")
        assert jobs(sql, "task") == [("tests.add",)] * 2
    finally:
        sql(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")


def test_it_waits_for_the_jobs_it_depends_on(sql: Sql) -> None:
    [(parent,)] = sql("SELECT pgbeat.submit('tests.add')")
    [(made,)] = sql("SELECT pgbeat.submit('tests.add', depends_on => ARRAY[%s::uuid])", str(parent))
    assert sql("SELECT is_blocked, unfinished_parents FROM pgbeat.jobs WHERE id = %s", made) == [
        (True, 1)
    ]
    assert sql("SELECT parent_id, needs FROM pgbeat.dependencies WHERE job_id = %s", made) == [
        (parent, "completed")
    ]
