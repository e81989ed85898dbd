"""Migrations: from empty to newest by whoever comes first, all or nothing, and as printed."""

import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text

from pgbeat.config import postgres_url
from pgbeat.database import connections
from pgbeat.database.migrations import migrate
from pgbeat.database.tables import COLUMNS
from pgbeat.errors import Forbidden, SchemaError
from pgbeat.testing.databases import TemporaryServer, in_database
from tests.support import schema_contents, versions
from tests.support.command_line import run
from tests.support.databases import Role
from tests.support.processes import until

#: All that a schema consists of, in words that are the same in every database.
CONTENTS = """
    SELECT 'column', table_name || '.' || column_name, concat_ws(' ', data_type, is_nullable,
           column_default, is_identity)
      FROM information_schema.columns WHERE table_schema = 'pgbeat'
    UNION ALL
    SELECT 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
      FROM pg_constraint WHERE connamespace = 'pgbeat'::regnamespace
    UNION ALL
    SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'pgbeat'
    UNION ALL
    SELECT 'trigger', tgname, pg_get_triggerdef(t.oid)
      FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
     WHERE relnamespace = 'pgbeat'::regnamespace AND NOT tgisinternal
    UNION ALL
    SELECT 'function', proname, pg_get_functiondef(oid)
      FROM pg_proc WHERE pronamespace = 'pgbeat'::regnamespace
    UNION ALL
    SELECT 'options', relname, array_to_string(reloptions, ',')
      FROM pg_class WHERE relnamespace = 'pgbeat'::regnamespace AND relkind = 'r'
    ORDER BY 1, 2, 3
"""
Statements = list[str]
Release = Callable[..., str]


@pytest.fixture
def engine(empty_database: str) -> Iterator[Engine]:
    engine = connections.engine(postgres_url(empty_database), "tests")
    yield engine
    engine.dispose()


@pytest.fixture
def migrated(database: str) -> Iterator[Engine]:
    """An engine on a database with pgbeat's schema."""
    engine = connections.engine(postgres_url(database), "tests")
    yield engine
    engine.dispose()


@pytest.fixture
def release_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """What this pgbeat was when its newest migration was that one: a context."""

    @contextmanager
    def release(newest: str) -> Iterator[None]:
        folder = versions.copy_migrations(tmp_path / f"before-{newest}", newest=newest)
        with monkeypatch.context() as patched:
            patched.setattr(migrate, "_FOLDER", folder)
            yield

    return release


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Release:
    """Makes this pgbeat one whose newest migration runs the statements; its version."""

    def release(*statements: str) -> str:
        folder = versions.copy_migrations(tmp_path / "migrations")
        revision = versions.add_migration(folder, *statements)
        monkeypatch.setattr(migrate, "_FOLDER", folder)
        return revision

    return release


def contents(engine: Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(CONTENTS))]


def execute(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def schemas(connection: Connection) -> list[str]:
    names = connection.scalars(
        text("SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema)'")
    )
    return sorted(names)


# -- upgrade -----------------------------------------------------------------------------------


def test_an_empty_database_gets_the_newest_schema_once(engine: Engine) -> None:
    assert migrate.upgrade(engine.url) == (None, migrate.newest(), (), {})
    with engine.connect() as connection:
        assert migrate.current(connection) == migrate.newest()
        migrate.check(connection)
    before = contents(engine)
    assert migrate.upgrade(engine.url) == (migrate.newest(), migrate.newest(), [], {})
    assert contents(engine) == before


def test_a_database_that_can_t_keep_every_text_is_refused(server: str) -> None:
    name = f"latin_{uuid4().hex[:8]}"
    with psycopg.connect(server, autocommit=True) as admin:
        for encoding in "LATIN1", "SQL_ASCII":
            admin.execute(
                f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"
            )
            with pytest.raises(SchemaError, match=f"encoding is {encoding}, pgbeat needs UTF8"):
                migrate.upgrade(postgres_url(in_database(server, name)))
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_rows_survive_an_upgrade(engine: Engine, next_release: Release) -> None:
    old = migrate.newest()
    migrate.upgrade(engine.url)
    execute(engine, "INSERT INTO pgbeat.schedules (name, task, every) VALUES ('s', 't', '1 hour')")
    new = next_release("ALTER TABLE pgbeat.schedules ADD COLUMN colour text")
    assert migrate.upgrade(engine.url)[:2] == (old, new)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT name, colour FROM pgbeat.schedules"))
        assert [tuple(row) for row in rows] == [("s", None)]


def test_a_migration_may_take_its_time(engine: Engine, next_release: Release) -> None:
    """However soon the role's statements must end."""
    migrate.upgrade(engine.url)
    new = next_release("SELECT pg_sleep(1.2)")
    execute(engine, f'ALTER DATABASE "{engine.url.database}" SET statement_timeout = 1000')
    assert migrate.upgrade(engine.url).after == new


def test_ten_at_once_do_no_harm(engine: Engine) -> None:
    with ThreadPoolExecutor(10) as pool:
        results = list(pool.map(migrate.upgrade, [engine.url] * 10))
    newest = migrate.newest()
    assert sorted((r[:2] for r in results), key=str) == [(newest, newest)] * 9 + [(None, newest)]
    with engine.connect() as connection:
        migrate.check(connection)
        assert connection.scalar(text("SELECT count(*) FROM pgbeat.migrations")) == 1


def test_a_failure_in_the_middle_leaves_nothing_behind(
    engine: Engine, next_release: Release
) -> None:
    next_release("CREATE TABLE pgbeat.half (id int)", "SELECT 1/0")
    with pytest.raises(Exception, match="division by zero"):
        migrate.upgrade(engine.url)
    with engine.connect() as connection:
        assert schemas(connection) == ["public"]
        assert migrate.current(connection) is None


def test_a_failed_upgrade_leaves_the_old_schema(engine: Engine, next_release: Release) -> None:
    old = migrate.newest()
    migrate.upgrade(engine.url)
    before = contents(engine)
    next_release("DROP TABLE pgbeat.ticks", "SELECT 1/0")
    with pytest.raises(Exception, match="division by zero"):
        migrate.upgrade(engine.url)
    assert contents(engine) == before
    with engine.connect() as connection:
        assert migrate.current(connection) == old


def test_an_open_transaction_does_not_block_the_others_behind_it(
    engine: Engine, next_release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that is waited for blocks all that come later: it is waited for briefly, and again."""
    migrate.upgrade(engine.url)
    new = next_release("ALTER TABLE pgbeat.schedules ADD COLUMN colour text")
    monkeypatch.setattr(migrate, "_LOCK_TIMEOUT", 1)
    with engine.connect() as idle, engine.connect() as busy, ThreadPoolExecutor(1) as pool:
        idle.execute(text("SELECT count(*) FROM pgbeat.schedules"))
        upgrading = pool.submit(migrate.upgrade, engine.url)
        until(lambda: is_waiting(busy))
        assert busy.scalar(text("SELECT count(*) FROM pgbeat.schedules")) == 0
        busy.rollback()
        assert not upgrading.done()
        idle.rollback()
        assert upgrading.result()[1] == new


def test_a_transaction_that_stays_open_is_named_in_the_end(
    engine: Engine, next_release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate.upgrade(engine.url)
    next_release("ALTER TABLE pgbeat.schedules ADD COLUMN colour text")
    monkeypatch.setattr(migrate, "_LOCK_TIMEOUT", 1)
    monkeypatch.setattr(migrate, "_PATIENCE", 0.0)
    with engine.connect() as idle:
        idle.execute(text("SELECT count(*) FROM pgbeat.schedules"))
        with pytest.raises(SchemaError, match="the tables are in use"):
            migrate.upgrade(engine.url)


def is_waiting(connection: Connection) -> bool:
    """Whether a migration waits for a lock."""
    found = connection.scalar(
        text(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name = 'pgbeat migrate' AND wait_event_type = 'Lock'"
        )
    )
    connection.rollback()
    return bool(found)


# -- check -------------------------------------------------------------------------------------


def complaint(engine: Engine) -> str:
    with engine.connect() as connection, pytest.raises(SchemaError) as raised:
        migrate.check(connection)
    return str(raised.value)


def test_a_missing_schema_is_told_how_to_get_one(engine: Engine) -> None:
    """So is one that has no version."""
    missing = "the database has no pgbeat schema; run `pgbeat migrate`"
    assert complaint(engine) == missing
    migrate.upgrade(engine.url)
    execute(engine, "DELETE FROM pgbeat.migrations")
    assert complaint(engine) == missing


def test_a_schema_too_old_is_told_to_be_migrated(
    engine: Engine, next_release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = migrate.newest()
    migrate.upgrade(engine.url)
    new = next_release("SELECT 1")
    monkeypatch.setattr(migrate, "OLDEST", new)
    assert complaint(engine) == (
        f"the database's pgbeat schema is {old}, this pgbeat needs {new} or newer; "
        "run `pgbeat migrate`"
    )
    assert migrate.upgrade(engine.url)[:2] == (old, new)
    with engine.connect() as connection:
        assert migrate.check(connection).version == new


@pytest.mark.parametrize(
    ("version", "columns"), [("0001", ""), ("0003", ""), ("0006", ", '0006' AS minimum")]
)
def test_a_schema_of_a_build_before_the_baseline_is_refused(
    engine: Engine, version: str, columns: str
) -> None:
    """Their versions are other schemas than those with the same numbers today."""
    made = f"CREATE TABLE pgbeat.migrations AS SELECT '{version}' AS version_num {columns}"
    execute(engine, "CREATE SCHEMA pgbeat", made)
    before = contents(engine)
    sentence = (
        f"the database's pgbeat schema ({version}) was made by a build before the first release "
        "and can't be upgraded; drop the schema pgbeat and the broker's tables (kombu_…), then "
        "run `pgbeat migrate`"
    )
    assert complaint(engine) == sentence
    with pytest.raises(SchemaError) as raised:
        migrate.upgrade(engine.url)
    assert str(raised.value) == sentence
    assert contents(engine) == before
    execute(engine, "DROP SCHEMA pgbeat CASCADE")
    assert migrate.upgrade(engine.url) == (None, migrate.newest(), (), {})


def test_a_program_may_use_the_schema_of_the_version_before(
    engine: Engine, next_release: Release
) -> None:
    old = migrate.newest()
    migrate.upgrade(engine.url)
    new = next_release("SELECT 1")
    with engine.connect() as connection:
        assert migrate.check(connection).version == old < new


def test_a_newer_schema_that_only_added_admits_the_program_and_is_left_alone(
    engine: Engine, next_release: Release, release_before: Callable[[str], Any]
) -> None:
    old = migrate.newest()
    new = next_release("ALTER TABLE pgbeat.schedules ADD COLUMN colour text")
    migrate.upgrade(engine.url)
    with release_before(old):
        with engine.connect() as connection:
            assert migrate.check(connection) == (new, "0001")
        assert migrate.upgrade(engine.url)[:2] == (new, new)


def test_a_newer_schema_that_took_something_away_refuses_the_program(
    engine: Engine, next_release: Release, release_before: Callable[[str], Any]
) -> None:
    old = migrate.newest()
    new = f"{int(old) + 1:04}"
    next_release(
        "ALTER TABLE pgbeat.audit DROP COLUMN origin",
        f"UPDATE pgbeat.migrations SET oldest_program = '{new}'",
    )
    migrate.upgrade(engine.url)
    sentence = (
        f"the database's pgbeat schema is {new}, which admits programs from {new} on, and this "
        f"pgbeat is {old}; upgrade pgbeat"
    )
    with release_before(old):
        assert complaint(engine) == sentence
        with pytest.raises(SchemaError, match=sentence):
            migrate.upgrade(engine.url)
        with engine.connect() as connection:
            assert migrate.current(connection) == new


def test_versions_are_those_of_the_migrations(next_release: Release) -> None:
    from alembic.script import ScriptDirectory

    new = next_release("SELECT 1")
    scripts = ScriptDirectory.from_config(migrate._config())
    revisions = [script.revision for script in scripts.walk_revisions()]
    assert migrate.known() == revisions[::-1]
    assert migrate.newest() == scripts.get_current_head() == new


def test_what_is_to_run_and_what_it_locks(
    engine: Engine, release_before: Callable[[str], Any], next_release: Release
) -> None:
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with release_before("0001"):
        migrate.upgrade(engine.url)
    new = next_release("ALTER TABLE pgbeat.jobs ADD COLUMN colour text")
    checked = run(url, "migrate", "--check", "--json")
    assert checked.exit_code == 1
    pending = json.loads(checked.stdout)["pending"]
    assert [one["version"] for one in pending] == [*migrate.known()[1:-1], new]
    assert f"{new}: The next release's migration" in run(url, "migrate", "--check").stdout
    printed = run(url, "migrate", "--sql").stdout
    assert "pgbeat.queue_load" in printed and "CREATE TABLE pgbeat.jobs" not in printed
    with psycopg.connect(url) as connection:
        connection.execute(printed.encode())
    assert "the newest version" in run(url, "migrate", "--sql").stdout


def test_times_that_no_program_can_read_are_moved(
    engine: Engine, release_before: Callable[[str], Any]
) -> None:
    with release_before("0001"):
        migrate.upgrade(engine.url)
    execute(
        engine,
        "INSERT INTO pgbeat.lanes (name, paused_at, created_at) "
        "VALUES ('l', 'infinity', '-infinity')",
        "INSERT INTO pgbeat.lanes (name, created_at) VALUES ('m', '2026-01-01 00:00+00')",
        "INSERT INTO pgbeat.jobs (id, task, job_source, created_by, is_system_job, state, run_at) "
        "VALUES (gen_random_uuid(), 't', 'user_api', 'me', false, 'scheduled', 'infinity')",
    )
    migrate.upgrade(engine.url)
    with engine.connect() as connection:
        rows = connection.execute(
            text(
                "(SELECT paused_at, created_at FROM pgbeat.lanes ORDER BY name) "
                "UNION ALL SELECT run_at, NULL FROM pgbeat.jobs"
            )
        )
        times = [tuple(at and at.astimezone(UTC).isoformat()[:10] for at in row) for row in rows]
    assert times == [("9999-12-30", "0001-01-02"), (None, "2026-01-01"), ("9999-12-30", None)]


@pytest.mark.parametrize("version", migrate.known()[1:])
def test_a_migration_says_what_it_locks(
    engine: Engine, release_before: Callable[[str], Any], version: str
) -> None:
    """Whatever keeps others from reading or writing a table that was there before."""
    with release_before(f"{int(version) - 1:04}"):
        migrate.upgrade(engine.url)
    with engine.begin() as connection:
        connection.execute(text("SELECT pgbeat.adopt_broker()"))
    with release_before(version):
        with engine.connect() as connection:
            [pending] = migrate.pending(connection)
            before = set(connection.scalars(text(_TABLES)))
        with engine.begin() as connection:
            migrate._run_migrations(connection)
            locks = {(row.name, row.mode) for row in connection.execute(text(_LOCKS))}
    assert {(name, mode) for name, mode in locks if name in before} == {
        (lock.table, f"{lock.mode.title().replace(' ', '')}Lock") for lock in pending.locks
    }


_TABLES = "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'p') AND oid > 16383"
#: The strongest on each table.
_LOCKS = """
    SELECT DISTINCT ON (c.oid) c.oid::regclass::text AS name, l.mode
      FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
     WHERE l.pid = pg_backend_pid() AND c.relkind IN ('r', 'p') AND c.oid > 16383
       AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
       AND c.relname <> 'migrations'
     ORDER BY c.oid, array_position(ARRAY['AccessExclusiveLock', 'ExclusiveLock',
           'ShareRowExclusiveLock', 'ShareLock', 'ShareUpdateExclusiveLock'], l.mode)
"""


# -- what is missing ---------------------------------------------------------------------------


#: What someone does to the schema, and what is lost by that.
LOST = [
    ("DROP FUNCTION pgbeat.dead_consumers()", "function pgbeat.dead_consumers()"),
    (
        "CREATE OR REPLACE FUNCTION pgbeat.leave_queues(queues bigint[]) RETURNS void "
        "LANGUAGE sql AS 'SELECT'",
        "function pgbeat.leave_queues(queues bigint[])",
    ),
    ("DROP INDEX pgbeat.schedules_due", "index pgbeat.schedules.schedules_due"),
    (
        "ALTER TABLE pgbeat.schedules DISABLE TRIGGER announce_change",
        "trigger pgbeat.schedules.announce_change",
    ),
    (
        "ALTER TABLE pgbeat.ended_jobs_to_come DISABLE TRIGGER job_ended",
        "trigger pgbeat.ended_jobs.job_ended",
    ),
    (
        "ALTER TABLE pgbeat.ended_jobs_kept DISABLE TRIGGER change_paused",
        "trigger pgbeat.jobs.change_paused",
    ),
    ("DROP TRIGGER pgbeat_announce ON kombu_message", "trigger kombu_message.pgbeat_announce"),
    (
        "DROP INDEX pgbeat.unfinished_jobs_waiting",
        "index pgbeat.unfinished_jobs.unfinished_jobs_waiting",
    ),
    (
        "DROP TRIGGER set_fair_key ON pgbeat.unfinished_jobs",
        "trigger pgbeat.unfinished_jobs.set_fair_key",
    ),
    ("DROP TRIGGER job_ended ON pgbeat.ended_jobs", "trigger pgbeat.ended_jobs.job_ended"),
    (
        "DROP INDEX pgbeat.ended_executions_recorded",
        "index pgbeat.ended_executions.ended_executions_recorded",
    ),
    ("DROP VIEW pgbeat.queue_load", "view pgbeat.queue_load"),
    ("DROP INDEX kombu_message_ready", "index kombu_message.kombu_message_ready"),
]


def test_what_someone_dropped_is_named_and_made_again(migrated: Engine) -> None:
    newest = migrate.newest()
    execute(migrated, "SELECT pgbeat.adopt_broker()")
    before = contents(migrated)
    for statement, lost in LOST:
        execute(migrated, statement)
        with migrated.connect() as connection:
            missing = migrate.missing(connection, newest)
        assert lost in missing
        assert all(name.startswith("column ") for name in missing if name != lost)
        assert migrate.upgrade(migrated.url) == (newest, newest, missing, {})
        with migrated.connect() as connection:
            assert migrate.missing(connection, newest) == []
        assert contents(migrated) == before, lost


def test_sequences_that_are_behind_their_rows_are_advanced(migrated: Engine) -> None:
    """As where the rows came by logical replication, which copies no sequences."""
    newest = migrate.newest()
    execute(migrated, "SELECT pgbeat.adopt_broker()")
    execute(migrated, "INSERT INTO kombu_queue (id, name) VALUES (7, 'q')")
    execute(
        migrated,
        "INSERT INTO pgbeat.ticks (id, schedule_id, schedule, due_at, outcome, error) "
        "VALUES (1, 1, 's', now(), 'failed', 'e')",
    )
    behind = ["value of sequence pgbeat.ticks_id_seq", "value of sequence queue_id_sequence"]
    for restored in behind, []:
        assert migrate.upgrade(migrated.url) == (newest, newest, restored, {})
    with migrated.connect() as connection:
        assert connection.scalar(text("SELECT nextval('queue_id_sequence')")) == 8
        assert connection.scalar(text("SELECT nextval('pgbeat.ticks_id_seq')")) == 2


def test_a_restored_dump_lacks_nothing_but_privileges(own_server: TemporaryServer) -> None:
    """Without them, everybody could run the functions that act as the owner."""
    url, encoding = postgres_url(own_server.dsn), "TEMPLATE template0 ENCODING 'SQL_ASCII'"
    migrate.upgrade(url)
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        for name, options in {"whole": "", "bare": "", "ascii": encoding}.items():
            admin.execute(f"CREATE DATABASE {name} {options}".encode())
    dump(own_server, "whole")
    assert migrate.upgrade(url.set(database="whole")).restored == []

    dump(own_server, "bare", "--no-owner", "--no-privileges")
    for_owner = migrate.upgrade(url.set(database="bare")).restored
    assert "function pgbeat.find_jobs_as_owner(ids uuid[])" in for_owner
    assert all("_as_owner(" in name for name in for_owner)
    with psycopg.connect(in_database(own_server.dsn, "bare")) as connection:
        assert connection.execute(FOR_EVERYBODY).fetchall() == []

    dump(own_server, "ascii")
    with pytest.raises(SchemaError, match="encoding is SQL_ASCII, pgbeat needs UTF8"):
        migrate.upgrade(url.set(database="ascii"))


FOR_EVERYBODY = """
    SELECT proname FROM pg_proc WHERE pronamespace = 'pgbeat'::regnamespace
       AND proname LIKE '%as_owner' AND has_function_privilege('public', oid, 'EXECUTE')
"""


def dump(server: TemporaryServer, name: str, *options: str) -> None:
    """Dumps the server's first database, and restores it as another."""
    dumped = subprocess.run(
        [server.programs / "pg_dump", *options, server.dsn], check=True, capture_output=True
    ).stdout
    subprocess.run(
        [server.programs / "psql", "-v", "ON_ERROR_STOP=1", in_database(server.dsn, name)],
        check=True,
        input=dumped,
        capture_output=True,
    )


@pytest.mark.parametrize(
    "setting",
    [
        "TimeZone = 'Europe/Berlin'",
        "search_path = public, pgbeat",
        "quote_all_identifiers = on",
        "extra_float_digits = -3",
    ],
)
def test_nothing_is_missing_because_of_how_the_server_writes_it(
    migrated: Engine, setting: str
) -> None:
    newest, lost = migrate.newest(), "constraint pgbeat.schedules.schedules_failed_due_at"
    execute(migrated, f'ALTER DATABASE "{migrated.url.database}" SET {setting}')
    with migrated.connect() as connection:
        assert migrate.missing(connection, newest) == []
    execute(migrated, "ALTER TABLE pgbeat.schedules DROP CONSTRAINT schedules_failed_due_at")
    assert migrate.upgrade(migrated.url).restored == [lost]


def test_the_brokers_tables_get_their_triggers_with_a_schema_that_was_dropped(
    migrated: Engine,
) -> None:
    execute(migrated, "SELECT pgbeat.adopt_broker()", "DROP SCHEMA pgbeat CASCADE")
    migrate.upgrade(migrated.url)
    with migrated.connect() as connection:
        assert migrate.missing(connection, migrate.newest()) == []


@pytest.mark.parametrize(
    ("statement", "lost"),
    [
        ("ALTER TABLE pgbeat.webhooks DROP COLUMN secret", "column pgbeat.webhooks.secret"),
        ("DROP TABLE pgbeat.lanes CASCADE", "column pgbeat.lanes.created_at"),
    ],
)
def test_a_table_that_was_dropped_is_not_made_again_without_its_rows(
    migrated: Engine, statement: str, lost: str
) -> None:
    """Though functions need it that could be made again."""
    execute(migrated, statement)
    with pytest.raises(SchemaError, match=f"lacks {lost}.* restore a backup"):
        migrate.upgrade(migrated.url)


def test_a_role_that_may_not_change_it_is_told_who_may(
    database: str, ordinary_role: Role, empty_database: str
) -> None:
    """With and without a schema."""
    for dsn in (database, empty_database):
        url = postgres_url(ordinary_role.dsn).set(database=postgres_url(dsn).database)
        with pytest.raises(Forbidden, match=r"denied for .*as the schema's owner"):
            migrate.upgrade(url)


def test_an_operators_own_objects_are_nobodys_business(migrated: Engine) -> None:
    execute(migrated, "CREATE INDEX mine ON pgbeat.jobs (priority)")
    with migrated.connect() as connection:
        assert migrate.missing(connection, migrate.newest()) == []


# -- what the schema is ------------------------------------------------------------------------


def test_the_printed_script_makes_the_same_schema(engine: Engine, migrated: Engine) -> None:
    with psycopg.connect(
        engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    ) as connection:
        connection.execute(migrate.script().encode())
    with engine.connect() as printed:
        migrate.check(printed)
    assert contents(engine) == contents(migrated)


def test_the_recorded_contents_are_those_of_a_new_schema(migrated: Engine) -> None:
    """If not: `python -m tests.support.schema_contents`."""
    with migrated.connect() as connection:
        assert schema_contents.lines(connection) == schema_contents.recorded().read_text()
        assert schema_contents.columns(connection) == COLUMNS.read_text()
