"""Schedules: what the database takes and refuses, announces, finds by index and hands out once."""

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text

from pgbeat.beat import due
from pgbeat.config import postgres_url
from pgbeat.database import channels, connections
from pgbeat.errors import AlreadyExists, InvalidSchedule, NotFound
from pgbeat.schedules import control, writes
from pgbeat.schedules import model as schedules
from pgbeat.testing.databases import Databases
from tests.support.command_line import Sql
from tests.support.databases import executed
from tests.support.problems import raises
from tests.support.rows import make_schedule, unit_on

NOW = datetime(2025, 6, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def shared(pgbeat_databases: Databases) -> Iterator[str]:
    """DSN of a database for the tests that leave nothing in it."""
    with pgbeat_databases.lent() as dsn:
        yield dsn


@pytest.fixture
def connection(shared: str) -> Iterator[Connection]:
    """A connection in a transaction, rolled back after the test."""
    with connections.engine(postgres_url(shared), "tests").connect() as connection:
        connection.execute(text("SELECT"))  # begins it
        yield connection


@pytest.fixture
def sql(connection: Connection) -> Sql:
    """Runs a statement in the connection's transaction, which survives its errors; its rows."""
    driver: Any = connection.connection.driver_connection

    def run(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with driver.transaction():
            return executed(driver, statement, *parameters)

    return run


#: Adds a schedule as a person would type it.
insert = partial(make_schedule, every="1 hour")


def insert_many(dsn: str, count: int) -> None:
    """Schedules s1, s2 …, every third paused or disabled, half of them due within the hour."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO pgbeat.schedules (name, task, cron, next_run, enabled, paused_at, kwargs) "
            "SELECT 's' || i, 'tests.add', i %% 60 || ' * * * *', "
            "now() + (i - %s) * interval '1 s', i %% 3 <> 0, CASE WHEN i %% 6 = 1 THEN now() END, "
            "jsonb_build_object('x', i) "
            "FROM generate_series(1, %s) i",
            (count // 2, count),
        )
        connection.execute("VACUUM ANALYZE pgbeat.schedules")


# -- what the database takes ---------------------------------------------------------------------


def test_the_least_that_a_person_would_type(sql: Sql, connection: Connection) -> None:
    sql(
        "INSERT INTO pgbeat.schedules (name, task, cron) "
        "VALUES ('nightly', 'tasks.maintenance.backup', '0 2 * * *')"
    )
    row = schedules.get(connection, "nightly")
    assert (row.task, row.cron, row.every, row.timezone) == (
        "tasks.maintenance.backup",
        "0 2 * * *",
        None,
        None,
    )
    assert (row.launcher, row.args, row.kwargs, row.options) == ("GenericLauncher", [], {}, {})
    assert (row.enabled, row.paused_at, row.next_run, row.source) == (True, None, None, "sql")
    assert (row.max_retries, row.retry_base, row.retry_cap, row.retry_count) == (
        5,
        timedelta(minutes=1),
        timedelta(hours=1),
        0,
    )
    assert row.is_plain


@pytest.mark.parametrize(
    "values",
    [
        {"every": "1 microsecond"},
        {"every": "36500 days"},
        {"every": None, "cron": "@daily"},
        {"launcher": "mine", "task": None},
        {"launcher": "app.launchers:Mine"},
        {"timezone": "America/Argentina/Buenos_Aires"},
        {"max_retries": 0, "retry_base": "0", "retry_cap": "0"},
        {"args": '[1, "two"]', "kwargs": '{"area": "DK1"}', "options": '{"priority": 3}'},
        {"name": "Ünïcode, (and) ~more!"},
        {"name": "x" * 200},
        {"source": "code", "every": None, "args": None},
        {"source": "code", "name": "fetch('http://example.com/')"},
        {"next_run": "2000-01-01", "paused_at": "2000-01-01"},
    ],
)
def test_what_is_taken(sql: Sql, connection: Connection, values: dict[str, Any]) -> None:
    insert(sql, **values)
    [row] = schedules.listing(connection)
    assert row.name == values.get("name", "s")


# -- what the database refuses -------------------------------------------------------------------


def refusal(sql: Sql, name: str = "s", **values: Any) -> str:
    with pytest.raises(psycopg.errors.CheckViolation) as raised:
        insert(sql, name, **values)
    return str(raised.value.diag.message_primary)


@pytest.mark.parametrize(
    ("values", "field", "code"),
    [
        ({"every": None, "cron": "61 * * * *"}, "cron", "malformed"),
        ({"timezone": "Mars/Olympus"}, "timezone", "unknown"),
        ({"args": '{"x": 1}'}, "args", "malformed"),
        ({"args": None}, "args", "required"),
        ({"kwargs": "[]"}, "kwargs", "malformed"),
        ({"kwargs": "null"}, "kwargs", "malformed"),
        ({"options": '"urgent"'}, "options", "malformed"),
        ({"every": "1 month"}, "every", "out_of_range"),
        ({"every": "1 month -29 days"}, "every", "out_of_range"),
        ({"every": "0"}, "every", "out_of_range"),
        ({"every": "36501 days"}, "every", "out_of_range"),
        ({"cron": "0 2 * * *"}, "every", "conflict"),
        ({"every": None}, "", "required"),
        ({"max_retries": -1}, "max_retries", "out_of_range"),
        ({"retry_cap": "1 s"}, "retry_cap", "out_of_range"),
        ({"retry_cap": "99999 days"}, "retry_cap", "out_of_range"),
        ({"condition_sql": " \n\t"}, "condition_sql", "required"),
        ({"launcher": "my launcher"}, "launcher", "malformed"),
        ({"task": None}, "task", "required"),
        ({"task": " tests.add"}, "task", "malformed"),
        ({"queue": ""}, "queue", "required"),
        ({"name": ""}, "name", "required"),
        ({"name": "a/b"}, "name", "malformed"),
        ({"name": ".."}, "name", "malformed"),
        ({"name": "x" * 201}, "name", "malformed"),
        ({"next_run": "infinity"}, "next_run", "out_of_range"),
        ({"next_run": "0044-03-15 BC"}, "next_run", "out_of_range"),
        ({"next_run": "10000-01-01"}, "next_run", "out_of_range"),
        ({"paused_at": "infinity"}, "paused_at", "out_of_range"),
    ],
)
def test_what_is_refused_has_a_field_and_a_code(
    sql: Sql, values: dict[str, Any], field: str, code: str
) -> None:
    insert(sql, "there")
    assignments = ", ".join(f"{column} = %s" for column in values)
    for attempt in (
        lambda: insert(sql, **{"name": "s", **values}),
        lambda: sql(f"UPDATE pgbeat.schedules SET {assignments}", *values.values()),
    ):
        with pytest.raises(psycopg.errors.CheckViolation) as raised:
            attempt()
        found = raised.value.diag
        assert (found.column_name or "", found.constraint_name) == (field, code)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"cron": "0 2 * * *"}, "it has both cron and every; keep one"),
        ({"name": "a/b"}, "a name has no slash, no control character and no space at its ends"),
    ],
)
def test_what_is_refused_is_told_what_would_be_right(
    sql: Sql, values: dict[str, Any], sentence: str
) -> None:
    assert refusal(sql, **values) == f'schedule "{values.get("name", "s")}": {sentence}'


@pytest.mark.parametrize(
    "values",
    [
        {"every": "-1 hour"},
        {"every": "40000 days"},
        {"cron": "* * * * *"},
        {"every": None},
        {"args": "{}"},
        {"args": None},
        {"kwargs": "[]"},
        {"options": "[]"},
        {"task": None},
        {"max_retries": -1},
        {"retry_count": -1},
        {"retry_cap": "1 s"},
        {"source": "elsewhere"},
        {"name": "x" * 201},
        {"next_run": "-infinity"},
        {"last_run": "infinity"},
        {"last_success": "0044-03-15 BC"},
        {"last_failure": "10000-01-01"},
        {"paused_at": "infinity"},
        {"created_at": "infinity"},
        {"updated_at": "infinity"},
    ],
)
def test_what_would_break_beat_is_refused_without_the_trigger_too(
    sql: Sql, values: dict[str, Any]
) -> None:
    sql("ALTER TABLE pgbeat.schedules DISABLE TRIGGER USER")
    insert(sql, "good")
    with pytest.raises(psycopg.errors.CheckViolation):
        insert(sql, **values)


@pytest.mark.parametrize(
    "name",
    ["pdt", "Foo5", "UTC+3", "europe/oslo", "Europe", "+01:00", "localtime", "posix/UTC", "", ","],
)
def test_what_only_postgres_would_take_for_a_zone_is_refused(sql: Sql, name: str) -> None:
    assert f"timezone '{name}' is not known" in refusal(sql, timezone=name)


def test_a_number_of_any_length_does_not_hide_the_other_rows(
    sql: Sql, connection: Connection
) -> None:
    insert(sql, "huge", kwargs='{"x": 1e5000}')
    insert(sql, "good", kwargs='{"x": 1}')
    rows = {row.name: row.kwargs for row in schedules.listing(connection)}
    assert rows == {"huge": {"x": float("inf")}, "good": {"x": 1}}


# -- what a change does to the row ---------------------------------------------------------------

SPENT: dict[str, Any] = {
    "next_run": "2030-01-01",
    "retry_count": 3,
    "disabled_reason": "failed 3 times in a row",
}
KEPT = (False, 3, SPENT["disabled_reason"])
COMPUTED = (True, 0, SPENT["disabled_reason"])


@pytest.mark.parametrize(
    ("values", "change", "state"),
    [
        ({"enabled": False}, "enabled = true", (True, 0, None)),
        ({"paused_at": "2025-01-01"}, "paused_at = NULL", COMPUTED),
        ({}, "every = '2 hours'", COMPUTED),
        ({}, "every = NULL, cron = '0 2 * * *'", COMPUTED),
        ({}, "timezone = 'Europe/Oslo'", COMPUTED),
        ({}, "enabled = false", KEPT),
        ({}, "enabled = true", KEPT),
        ({}, "paused_at = now()", KEPT),
        ({}, "every = '60 minutes'", KEPT),
        ({}, "kwargs = '{\"x\": 1}'", KEPT),
        ({}, "max_retries = 9", KEPT),
        ({}, "name = 'other'", KEPT),
        ({}, "last_run = now()", KEPT),
    ],
)
def test_some_changes_compute_the_next_time(
    sql: Sql, values: dict[str, Any], change: str, state: tuple[Any, ...]
) -> None:
    insert(sql, **values | SPENT)
    sql(f"UPDATE pgbeat.schedules SET {change}")
    found = sql("SELECT next_run IS NULL, retry_count, disabled_reason FROM pgbeat.schedules")
    assert found == [state]


@pytest.mark.parametrize("change", ["enabled = true", "paused_at = NULL", "every = '2 hours'"])
def test_a_next_run_set_in_the_same_statement_stays(sql: Sql, change: str) -> None:
    insert(sql, enabled=False, paused_at="2025-01-01", **SPENT)
    sql(f"UPDATE pgbeat.schedules SET {change}, next_run = '2031-01-01'")
    assert sql("SELECT next_run = '2031-01-01' FROM pgbeat.schedules") == [(True,)]


def test_a_change_by_a_person_is_dated(sql: Sql) -> None:
    insert(sql, updated_at="2025-01-01")
    sql("UPDATE pgbeat.schedules SET next_run = now(), retry_count = 1")
    assert sql("SELECT updated_at = '2025-01-01' FROM pgbeat.schedules") == [(True,)]
    sql("UPDATE pgbeat.schedules SET max_retries = 1")
    assert sql("SELECT updated_at > '2025-01-02' FROM pgbeat.schedules") == [(True,)]


# -- what is announced ---------------------------------------------------------------------------


CHANGES = [
    "INSERT INTO pgbeat.schedules (name, task, every) VALUES ('t', 'tests.add', '1 hour')",
    "UPDATE pgbeat.schedules SET next_run = now()",
    "UPDATE pgbeat.schedules SET paused_at = now()",
    "DELETE FROM pgbeat.schedules WHERE name <> 's1'",
    "TRUNCATE pgbeat.schedules",
]


def announcements(database: str, setting: str) -> dict[str, int]:
    """How many notifications come of each change: those that come before one of our own."""
    insert_many(database, 10)
    counts = dict.fromkeys(CHANGES, 0)
    with (
        psycopg.connect(database, autocommit=True) as listener,
        psycopg.connect(database, autocommit=True) as other,
    ):
        listener.execute(f"LISTEN {channels.SCHEDULES}")
        other.execute("SELECT set_config('pgbeat.leader', %s, false)", (setting,))
        for change in CHANGES:
            other.execute(change.encode())
            other.execute(f"NOTIFY {channels.SCHEDULES}, 'the end'")
            for notification in listener.notifies(timeout=30):
                if notification.payload == "the end":
                    break
                counts[change] += 1
            else:
                raise AssertionError("our own notification did not come")
    return counts


@pytest.mark.parametrize("setting", ["", "off"])
def test_a_change_is_announced_once_a_statement(database: str, setting: str) -> None:
    assert announcements(database, setting) == dict.fromkeys(CHANGES, 1)


def test_what_the_leader_writes_is_not_announced(database: str) -> None:
    assert announcements(database, "on") == dict.fromkeys(CHANGES, 0)


# -- what is found by index ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(pgbeat_databases: Databases) -> Iterator[str]:
    """DSN of a database with thirty thousand schedules, for reading."""
    with pgbeat_databases.lent() as dsn:
        insert_many(dsn, 30_000)
        yield dsn


def due_now(connection: Connection, limit: int = 500) -> list[schedules.Schedule]:
    return due.oldest(connection, connections.now(connection), limit=limit)


QUERIES: dict[str, Callable[[Connection], Any]] = {
    "snapshot": due.snapshot,
    "snapshot without held": lambda connection: due.snapshot(connection, range(1, 64)),
    "due": due_now,
    "due, only plain": lambda connection: due.oldest(
        connection, connections.now(connection), limit=500, held=range(1, 64), only_plain=True
    ),
    "due, none": lambda connection: due.oldest(connection, NOW - timedelta(days=9999), limit=9),
    "new": lambda connection: due.new(connection, limit=500),
    "lock": lambda connection: due.lock(connection, due_now(connection)),
    "lock, one": lambda connection: due.lock(connection, due_now(connection, 1)),
    "get": lambda connection: schedules.get(connection, "s5000"),
    "get for update": lambda connection: schedules.get(connection, "s5000", for_update=True),
}


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("query", QUERIES)
def test_no_plan_reads_the_whole_table(many: str, query: str, mode: str) -> None:
    """The driver prepares what it sends often, and then Postgres may plan without parameters."""
    with connections.engine(postgres_url(many), "tests").begin() as connection:
        connection.execute(text(f"SET plan_cache_mode = {mode}"))
        for _ in range(8):
            QUERIES[query](connection)
        scans = connection.execute(
            text(
                "SELECT seq_scan, idx_scan FROM pg_stat_xact_user_tables "
                "WHERE relid = 'pgbeat.schedules'::regclass"
            )
        ).one()
        assert scans.seq_scan == 0
        assert scans.idx_scan >= 8


def test_an_idle_look_reads_a_handful_of_pages(many: str) -> None:
    with connections.engine(postgres_url(many), "tests").connect() as connection:
        pages = []
        for _ in range(8):  # until a function's plan is kept
            rows = connection.exec_driver_sql(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {due._SNAPSHOT}",
                {"held": [], "namespace": "default"},
            )
            [plan] = rows.scalar_one()
            pages.append(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])
        assert pages[-1] < 20, pages


# -- what is read, and handed out once -----------------------------------------------------------


def test_due_is_what_is_enabled_not_paused_and_past_oldest_first(
    sql: Sql, connection: Connection
) -> None:
    insert(sql, "b", next_run="2025-06-01 11:00Z")
    insert(sql, "a", next_run="2025-06-01 12:00Z")
    insert(sql, "later", next_run="2025-06-01 12:00:00.000001Z")
    insert(sql, "disabled", next_run="2025-06-01 11:00Z", enabled=False)
    insert(sql, "paused", next_run="2025-06-01 11:00Z", paused_at="2025-01-01")
    insert(sql, "new")
    rows = due.oldest(connection, NOW, limit=10)
    assert [row.name for row in rows] == ["b", "a"]
    assert [row.name for row in due.oldest(connection, NOW, limit=1)] == ["b"]
    assert [row.name for row in due.oldest(connection, NOW, limit=9, held=[rows[0].id])] == ["a"]
    assert [row.name for row in due.new(connection, limit=10)] == ["new"]


def test_only_plain_leaves_out_what_has_to_be_asked(sql: Sql, connection: Connection) -> None:
    insert(sql, "plain", next_run=NOW)
    insert(sql, "condition", next_run=NOW, condition_sql="SELECT true")
    insert(sql, "launcher", next_run=NOW, launcher="mine")
    insert(sql, "code", next_run=NOW, source="code", args=None)
    rows = due.oldest(connection, NOW, limit=10, only_plain=True)
    assert [row.name for row in rows] == ["plain"]
    assert {row.name: row.is_plain for row in due.oldest(connection, NOW, limit=10)} == {
        "plain": True,
        "condition": False,
        "launcher": False,
        "code": False,
    }


def test_the_outlook(sql: Sql, connection: Connection) -> None:
    assert due.snapshot(connection).next_run is None
    insert(sql, "b", next_run="2031-01-01Z")
    insert(sql, "a", next_run="2030-01-01Z")
    insert(sql, "disabled", next_run="2029-01-01Z", enabled=False)
    insert(sql, "paused", next_run="2029-01-01Z", paused_at="2025-01-01")
    snapshot = due.snapshot(connection)
    assert (snapshot.next_run, snapshot.has_new) == (datetime(2030, 1, 1, tzinfo=UTC), False)
    insert(sql, "new")
    assert due.snapshot(connection).has_new
    held = [schedules.get(connection, name).id for name in ("a", "new")]
    snapshot = due.snapshot(connection, held)
    assert (snapshot.next_run, snapshot.has_new) == (datetime(2031, 1, 1, tzinfo=UTC), False)
    assert abs(snapshot.now - connections.now(connection)) < timedelta(seconds=30)


@pytest.fixture
def three(engine: Engine) -> list[schedules.Schedule]:
    """The schedules a, b and c, as read before anything happened to them."""
    with engine.begin() as connection:
        for name in ("a", "b", "c"):
            writes.add(connection, name, source="cli", task="t", every=timedelta(hours=1))
    with engine.begin() as connection:
        return schedules.listing(connection)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE pgbeat.schedules SET paused_at = now() WHERE name = 'b'",
        "UPDATE pgbeat.schedules SET next_run = next_run WHERE name = 'b'",
        "DELETE FROM pgbeat.schedules WHERE name = 'b'",
    ],
)
def test_lock_drops_what_was_changed_since_it_was_read(
    engine: Engine, three: list[schedules.Schedule], change: str
) -> None:
    a, _, c = three
    with engine.begin() as other:
        other.execute(text(change))
    with engine.begin() as taking:
        assert due.lock(taking, three) == {a.id, c.id}


def test_lock_drops_what_another_holds_without_waiting(
    engine: Engine, three: list[schedules.Schedule]
) -> None:
    a, b, c = three
    with engine.begin() as other, engine.begin() as taking:
        schedules.get(other, "b", for_update=True)
        taking.execute(text("SET LOCAL lock_timeout = 1"))
        assert due.lock(taking, three) == {a.id, c.id}
    with engine.begin() as taking:
        assert due.lock(taking, three) == {a.id, b.id, c.id}
        assert due.lock(taking, []) == set()


def test_set_next_leaves_what_was_changed_since_it_was_read(
    engine: Engine, three: list[schedules.Schedule]
) -> None:
    a, b, _ = three
    moment = datetime(2031, 1, 1, tzinfo=UTC)
    with engine.begin() as other:
        writes.edit(other, "b", next_run=moment)
    with engine.begin() as connection:
        due.set_next(connection, [due.Next(a, NOW), due.Next(b, NOW)])
    with engine.begin() as connection:
        found = {row.name: row.next_run for row in schedules.listing(connection)}
    assert found == {"a": NOW, "b": moment, "c": None}


# -- what a person does --------------------------------------------------------------------------


def test_add_gives_the_row(connection: Connection) -> None:
    row = writes.add(connection, "s", source="cli", task="t", cron="0 2 * * *", kwargs={"x": 1})
    assert (row.name, row.source, row.kwargs, row.next_run) == ("s", "cli", {"x": 1}, None)
    assert row == schedules.get(connection, "s")


def test_what_is_there_is_not_added_again(connection: Connection) -> None:
    writes.add(connection, "s", source="cli", task="t", every=timedelta(hours=1))
    with pytest.raises(AlreadyExists):
        writes.add(connection, "s", source="cli", task="u", every=timedelta(hours=1))
    assert schedules.get(connection, "s").task == "t"


def test_edit_changes_what_it_is_told(connection: Connection) -> None:
    writes.add(connection, "s", source="cli", task="t", every=timedelta(hours=1), owner="ops")
    row = writes.edit(connection, "s", every=None, cron="0 2 * * *", queue="slow")
    assert (row.every, row.cron, row.queue, row.owner) == (None, "0 2 * * *", "slow", "ops")
    assert writes.edit(connection, "s") == row


def test_switches(connection: Connection) -> None:
    unit = unit_on(connection)
    writes.add(connection, "s", source="cli", task="t", every=timedelta(hours=1), next_run=NOW)
    assert control.disable(unit, "s").after.disabled_reason == "disabled by hand"
    row = control.disable(unit, "s", "too loud").after
    assert (row.enabled, row.disabled_reason, row.next_run) == (False, "too loud", NOW)
    row = control.enable(unit, "s").after
    assert (row.enabled, row.disabled_reason, row.next_run) == (True, None, None)
    assert control.pause(unit, "s").after.paused_at is not None
    assert control.resume(unit, "s").after.paused_at is None
    control.remove(unit, "s")
    assert schedules.listing(connection) == []


def test_a_pause_begins_once(sql: Sql, connection: Connection) -> None:
    insert(sql, paused_at="2025-01-01Z")
    _, after = control.pause(unit_on(connection), "s")
    assert after.paused_at == datetime(2025, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "verb",
    [
        control.enable,
        control.disable,
        control.pause,
        control.resume,
        control.remove,
        partial(control.edit, values={}),
    ],
)
def test_what_is_not_there_is_not_found(connection: Connection, verb: Callable[..., Any]) -> None:
    unit = unit_on(connection)
    with raises(NotFound, ("schedule", "not_found")):
        verb(unit, "nihgtly")
    writes.add(connection, "nightly", source="cli", task="t", every=timedelta(hours=1))
    with pytest.raises(NotFound) as raised:
        verb(unit, "nihgtly")
    assert raised.value.message == "there is no schedule 'nihgtly'"
    assert raised.value.advice.startswith("did you mean 'nightly'? `pgbeat list`")


def test_listing_and_count(sql: Sql, connection: Connection) -> None:
    insert(sql, "b", next_run="2025-01-01Z")
    insert(sql, "a", next_run="9000-01-01Z")
    insert(sql, "c", enabled=False)
    insert(sql, "d", paused_at="2025-01-01")
    for which, names in ((None, "abcd"), (True, "abd"), (False, "c")):
        found = schedules.listing(connection, enabled=which)
        assert [row.name for row in found] == list(names)
    counts = {"total": 4, "active": 2, "paused": 1, "disabled": 1, "due": 1, "unplanned": 0}
    oldest = {"oldest_due": datetime(2025, 1, 1, tzinfo=UTC)}
    assert dict(schedules.count(connection)) == counts | oldest


HOURLY = {"every": timedelta(hours=1)}


# -- what a row computes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failures", "minutes"), [(0, 2), (1, 4), (2, 8), (4, 32), (5, 60), (6, 60), (10**9, 60)]
)
def test_backoff_doubles_up_to_its_cap(
    sql: Sql, connection: Connection, failures: int, minutes: int
) -> None:
    insert(sql, retry_count=failures)
    assert schedules.get(connection, "s").backoff() == timedelta(minutes=minutes)
    longest = "36500 days"
    insert(sql, "t", retry_base=longest, retry_cap=longest, retry_count=failures)
    assert schedules.get(connection, "t").backoff() == timedelta(days=36_500)


def test_the_job_id_is_the_same_in_every_zone(sql: Sql, connection: Connection) -> None:
    insert(sql)
    row = schedules.get(connection, "s")
    elsewhere = NOW.astimezone(tz=None)
    assert row.job_id(NOW) == row.job_id(elsewhere) == str(uuid.uuid5(row.uid, NOW.isoformat()))
    assert row.job_id(NOW) != row.job_id(NOW + timedelta(microseconds=1))


@pytest.mark.parametrize(
    ("values", "field", "code"),
    [
        ({}, "", "required"),
        ({"cron": "* * * * *", "timezone": "Mars"}, "timezone", "unknown"),
        ({**HOURLY, "colour": "red"}, "colour", "unknown_field"),
        ({**HOURLY, "retry_count": 1}, "retry_count", "unknown_field"),
        ({**HOURLY, "max_retries": 2**31}, "", "invalid_schedule"),
        ({"cron": "* * * * *", "rrule": "FREQ=DAILY"}, "rrule", "conflict"),
        ({"cron": "* * * * *", "after": "s"}, "after", "conflict"),
        ({"after": "s"}, "after", "circle"),
        ({"after": "other", "overlap": "buffer_all"}, "overlap", "conflict"),
        ({**HOURLY, "pause_after_failures": 0}, "pause_after_failures", "out_of_range"),
        ({**HOURLY, "fresh_within": timedelta(0)}, "fresh_within", "out_of_range"),
        (
            {**HOURLY, "task": None, "job_policy": {"template": "t"}},
            "job_policy.template",
            "unknown",
        ),
    ],
)
def test_what_is_wrong_is_neither_added_nor_edited(
    connection: Connection, values: dict[str, Any], field: str, code: str
) -> None:
    with raises(InvalidSchedule, (field, code)):
        writes.add(connection, "s", source="cli", **{"task": "t", **values})
    assert schedules.listing(connection) == []
    before = writes.add(connection, "s", source="cli", task="t", every=timedelta(hours=1))
    with raises(InvalidSchedule, (field, code)):
        writes.edit(connection, "s", **{"every": None, **values})
    assert schedules.get(connection, "s") == before
