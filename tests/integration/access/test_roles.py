"""`pgbeat grant`, and what a role may do with each profile: what its programs need, and no more."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psycopg
import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

import pgbeat
from pgbeat import aio
from pgbeat.access.roles import PROFILES, Profile
from pgbeat.beat.scheduler import Scheduler
from pgbeat.config import Settings, postgres_url
from pgbeat.errors import SchemaError
from tests.support import roles
from tests.support.command_line import Sql, read, refused, run
from tests.support.databases import Role, connected
from tests.support.django_shop import Shop
from tests.support.jobs import app as app
from tests.support.jobs import opened_app
from tests.support.old_rows import prune
from tests.support.rows import make_job, make_lane, make_schedule
from tests.support.schedulers import Beat
from tests.support.web import Web
from tests.web.api.test_permissions import TABLE, World, walk

#: What no profile but `web` may do, and what not even that one may.
FORBIDDEN = {
    "insert a token": "INSERT INTO pgbeat.tokens (id, actor, hash, created_by) "
    "VALUES ('t', 'root', '', 'me')",
    "read the hashes of tokens": "SELECT hash FROM pgbeat.tokens",
    "sign in by a link": "DELETE FROM pgbeat.sign_in_links RETURNING actor",
    "read the audit": "SELECT * FROM pgbeat.audit",
}
FOR_NOBODY = {
    "delete the audit": "DELETE FROM pgbeat.audit",
    "forge the audit": "UPDATE pgbeat.audit SET actor = 'me'",
    "change the schema's version": "UPDATE pgbeat.migrations SET oldest_program = '9'",
    "drop": "DROP TABLE pgbeat.jobs",
    "make a function": "CREATE FUNCTION pgbeat.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "truncate": "TRUNCATE pgbeat.results",
}
OF_WORKERS = {
    "make a schedule": "INSERT INTO pgbeat.schedules (name, task) VALUES ('s', 't')",
    "change a condition": "UPDATE pgbeat.schedules SET condition_sql = 'SELECT 1'",
    "delete history": "DELETE FROM pgbeat.ended_jobs",
    "prune the audit": "SELECT pgbeat.prune_audit('default', 0, 0, 10)",
    "analyze a table": "SELECT pgbeat.analyze_table('pgbeat.jobs'::regclass)",
    "send events elsewhere": "UPDATE pgbeat.webhooks SET url = 'https://example.com'",
    "make a template": "INSERT INTO pgbeat.templates (name, task) VALUES ('s', 't')",
}
OF_SUBMITTERS = {
    "read jobs": "SELECT args FROM pgbeat.jobs",
    "change a job": "UPDATE pgbeat.unfinished_jobs SET state = 'pending'",
    "end a job": "DELETE FROM pgbeat.unfinished_jobs",
    "insert a job": "INSERT INTO pgbeat.unfinished_jobs (id, task) VALUES (gen_random_uuid(), 't')",
    "read messages": "SELECT payload FROM kombu_message",
    "take a message": "DELETE FROM kombu_message",
    "pause a queue": "UPDATE kombu_queue SET paused_at = now()",
    "read results": "SELECT * FROM pgbeat.results",
    "change a lane": "UPDATE pgbeat.lanes SET max_running = 9",
    "write the end of a job": 'SELECT pgbeat.write_jobs(\'[{"id": "{job}", "task": "t", '
    '"state": "completed", "finished_at": "now", "job_source": "user_api", "created_by": "me"}]\')',
    "have a job wait": "SELECT pgbeat.write_dependencies_as_owner('{job}', "
    "ARRAY[gen_random_uuid()], 'completed')",
}
OF_READERS = {
    "change a job": OF_SUBMITTERS["change a job"],
    "submit": "SELECT pgbeat.submit('t')",
    "read the secrets of webhooks": "SELECT secret FROM pgbeat.webhooks",
    "publish": "INSERT INTO kombu_message (payload) VALUES ('')",
}
REFUSED: dict[Profile, dict[str, str]] = {
    "beat": FORBIDDEN | FOR_NOBODY,
    "worker": FORBIDDEN | FOR_NOBODY | OF_WORKERS,
    "web": FOR_NOBODY,
    "submit": FORBIDDEN | FOR_NOBODY | OF_WORKERS | OF_SUBMITTERS,
    "readonly": FORBIDDEN | FOR_NOBODY | OF_WORKERS | OF_READERS,
    "conditions": FORBIDDEN | FOR_NOBODY | OF_WORKERS | OF_SUBMITTERS | OF_READERS,
}


# ----- the command

BROKER = (
    "kombu_queue_consumer",
    "kombu_queue",
    "kombu_queue_exchange",
    "kombu_queue_binding",
    "kombu_message",
)


def rights_of(sql: Sql, role: str) -> list[Any]:
    return sql(
        "SELECT table_name, privilege_type FROM information_schema.table_privileges "
        "WHERE grantee = %s ORDER BY 1, 2",
        role,
    )


def test_what_it_prints_does_what_it_does(database: str, ordinary_role: Role, sql: Sql) -> None:
    sql("SELECT pgbeat.adopt_broker()")
    sql(f"GRANT ALL ON ALL TABLES IN SCHEMA pgbeat TO {ordinary_role.name}")
    before = rights_of(sql, ordinary_role.name)
    words = ["grant", "--role", ordinary_role.name, "--profile", "worker"]
    script = run(database, *words).stdout
    assert rights_of(sql, ordinary_role.name) == before
    sql(script)
    after = rights_of(sql, ordinary_role.name)
    assert ("unfinished_jobs", "DELETE") in after and ("results", "INSERT") in after
    assert not [right for table, right in after if table in ("tokens", "audit", "sign_in_links")]
    shown = read(database, *words, "--apply")
    assert (shown["profile"], shown["applied"], shown["changed"]) == ("worker", True, False)
    assert rights_of(sql, ordinary_role.name) == after
    assert sql("SELECT 1 FROM pgbeat.audit WHERE verb = 'grant'") == []
    assert read(database, *words[:-1], "conditions", "--apply")["changed"]
    assert rights_of(sql, ordinary_role.name) == []
    assert sql("SELECT origin, kind, subject, after FROM pgbeat.audit WHERE verb = 'grant'") == [
        ("cli", "role", ordinary_role.name, {"profile": "conditions"})
    ]


def test_tables_to_come(ordinary_role: Role, database: str, sql: Sql) -> None:
    words = ["grant", "--role", ordinary_role.name, "--apply", "--profile"]
    made = "CREATE TABLE pgbeat.new (); DROP TABLE IF EXISTS pgbeat.older"
    assert run(database, *words, "beat").exit_code == 0
    sql(made)
    sql("SELECT pgbeat.add_partition('ticks', now() + interval '1 day')")
    after = rights_of(sql, ordinary_role.name)
    assert ("new", "DELETE") in after and ("ticks_to_come", "DELETE") in after
    sql("ALTER TABLE pgbeat.new RENAME TO older")
    assert run(database, *words, "submit").exit_code == 0
    sql(made)
    left = {table for table, _ in rights_of(sql, ordinary_role.name)}
    assert left <= {"migrations", "lanes", "templates", *BROKER}
    sql("DROP TABLE pgbeat.new")


def test_beats_and_workers_that_lack_new_rights_are_told_of_grant(
    with_profile: Callable[[Profile], Role], sql: Sql
) -> None:
    """As after an upgrade, whose tables no role has but their owner."""
    role = with_profile("beat")
    sql(f"REVOKE ALL ON pgbeat.servers FROM {role.name}")
    with opened_app(role.dsn) as app:
        with pytest.raises(SystemExit, match=r"denied for table servers; .* run `pgbeat grant`"):
            Scheduler(app=app)
        with app.connection() as connection, pytest.raises(SchemaError, match="pgbeat grant"):
            app.amqp.TaskConsumer(connection.default_channel).consume()
        sql(f"REVOKE USAGE ON SCHEMA pgbeat FROM {role.name}")
        with app.connection() as connection, pytest.raises(OperationalError, match="pgbeat grant"):
            app.send_task("t", connection=connection, retry=False)


def test_what_it_refuses(database: str, ordinary_role: Role, sql: Sql) -> None:
    def error(role: str, url: str = database) -> str:
        return refused(run(url, "grant", "--role", role, "--profile", "beat", "--apply"), 1)

    assert "there is no role 'nobody'" in error("nobody")
    [(owner,)] = sql("SELECT current_user")
    assert "is a superuser" in error(owner)
    sql(f"GRANT USAGE ON SCHEMA pgbeat TO {ordinary_role.name}")
    sql(f"GRANT SELECT ON pgbeat.migrations TO {ordinary_role.name}")
    sql("CREATE ROLE other_of_roles")
    try:
        assert "only the tables' owner may" in error("other_of_roles", ordinary_role.dsn)
    finally:
        sql("DROP ROLE other_of_roles")
    sql(f"ALTER TABLE pgbeat.counters OWNER TO {ordinary_role.name}")
    assert "owner of tables" in error(ordinary_role.name)
    sql("ALTER TABLE pgbeat.counters OWNER TO CURRENT_USER")
    refused(run(database, "grant", "--role", "r", "--profile", "all"), 2)


def test_it_says_what_a_role_has_otherwise(database: str, ordinary_role: Role, sql: Sql) -> None:
    sql("GRANT SELECT ON pgbeat.tokens TO PUBLIC")
    words = ["grant", "--role", ordinary_role.name, "--profile", "beat", "--apply"]
    assert read(database, *words)["more"] == ["SELECT on pgbeat.tokens"]
    assert "SELECT on pgbeat.tokens" in run(database, *words).stderr


# ----- what each may not do


@pytest.mark.parametrize("profile", PROFILES)
def test_what_a_profile_may_not(
    sql: Sql, with_profile: Callable[[Profile], Role], profile: Profile
) -> None:
    job = make_job(sql)
    allowed = []
    with psycopg.connect(with_profile(profile).dsn) as connection:
        for what, statement in REFUSED[profile].items():
            try:
                connection.execute(statement.replace("{job}", job))
                allowed.append(what)
            except psycopg.errors.InsufficientPrivilege:
                pass
            connection.rollback()
    assert allowed == []


# ----- what each may do


def test_a_worker_ends_a_job_whatever_follows_it(
    sql: Sql, with_profile: Callable[[Profile], Role]
) -> None:
    """The schedule waits for it, is stale, and others come after it."""
    key = make_schedule(sql, fresh_within="1 hour", overlap="queue_one")
    make_schedule(sql, "one", after="s", fresh_within="1 hour", overlap="queue_one")
    make_schedule(sql, "several", after="s\nother")
    job_id = make_job(sql, "running", schedule_id=key)
    sql(
        "UPDATE pgbeat.schedules SET stale_since = now(), waiting_for = %s WHERE id = %s",
        job_id,
        key,
    )
    with psycopg.connect(with_profile("worker").dsn) as connection:
        connection.execute(
            "UPDATE pgbeat.jobs SET state = 'completed', finished_at = now() WHERE id = %s",
            [job_id],
        )
    after = sql("SELECT stale_since, upstream_ended, after_done FROM pgbeat.schedules ORDER BY id")
    assert after == [(None, 1, []), (None, 1, ["s"]), (None, 0, ["s"])]


def test_a_beat_prunes_the_audit_but_for_the_last_day(
    database: str, sql: Sql, with_profile: Callable[[Profile], Role]
) -> None:
    entry = "INSERT INTO pgbeat.audit (actor, origin, verb, kind, subject, at) VALUES "
    sql(f"{entry} ('a', 'cli', 'v', 'k', 's', now() - interval '90 days')")
    sql(f"{entry} ('b', 'cli', 'v', 'k', 's', now() - interval '2 hours')")
    settings = Settings(url=postgres_url(database), audit_days=0.01)
    with connected(with_profile("beat").dsn) as connection:
        assert prune(connection, settings)["audit"] == 1
    assert sql("SELECT actor FROM pgbeat.audit WHERE verb = 'v'") == [("b",)]


def test_readers(sql: Sql, with_profile: Callable[[Profile], Role], beat: Beat) -> None:
    make_schedule(sql, due="-1 second")
    beat().run_due()
    make_lane(sql, "one")
    dsn = with_profile("readonly").dsn
    checks = {each["check"]: each["result"] for each in read(dsn, "doctor")["checks"]}
    assert (checks["permissions"], checks["schema"], checks["broker"]) == ("unknown", "ok", "ok")
    for words in ("metrics", "workers", "queues", "list", "jobs", "top", "lanes", "groups"):
        assert run(dsn, words).exit_code == 0, words
    for noun in ("templates", "calendars", "dead", "errors", "load", "tasks", "forecast"):
        listing = ["list"] if noun in ("templates", "calendars", "dead") else []
        assert run(dsn, noun, *listing).exit_code == 0, noun


@pytest.mark.slow
def test_the_web_side(
    web: Web,
    app: Celery,
    beat: Beat,
    sql: Sql,
    with_profile: Callable[[Profile], Role],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each endpoint and page, for an administrator."""
    from pgbeat.web.api.jobs import events
    from tests.support.web import opened

    monkeypatch.setattr(events, "LONGEST", 0.1)
    beat().run_due()
    world = World(web, sql)
    role = with_profile("web")
    app.conf.update(pgbeat_url=role.dsn, broker_url=f"pgbeat+{role.dsn}")
    wrong = []
    with opened(app) as under_test:
        browser = under_test.browser(web.token("root", "admin"), Accept="application/json")
        for route in sorted(set(walk(web.app.routes)) & TABLE.keys() - {"GET /healthz/leader"}):
            world.reset()
            method, path = route.split(" ")[0], world.path(route)
            body = TABLE[route][1]
            more = {"json": body} if body is not None else {}
            answer: Any = browser.request(method, path, **more)
            if answer.status_code >= 500 or "permission denied" in answer.text:
                wrong.append((route, answer.status_code, answer.text[-300:]))
    assert wrong == []


class Submitter(NamedTuple):
    """An app whose role may only submit."""

    dsn: str
    app: Celery

    @property
    def add(self) -> Any:
        """Returns a task without a policy."""
        return self.app.tasks["tests.add"]


@pytest.fixture
def shop(with_profile: Callable[[Profile], Role], sql: Sql) -> Iterator[Submitter]:
    """An app whose role may only submit, and a lane with one slot."""
    make_lane(sql, "one")
    dsn = with_profile("submit").dsn
    tasks = {"tests.unique": {"unique": True}, "tests.in_lane": {"lane": "one"}}
    with opened_app(dsn, tasks) as app:
        yield Submitter(dsn, app)


def count(sql: Sql, where: str = "true") -> int:
    """Returns the number of jobs."""
    [(number,)] = sql(f"SELECT count(*) FROM pgbeat.jobs WHERE {where}")
    return int(number)


def messages(sql: Sql) -> int:
    """Returns the number of messages."""
    [(number,)] = sql(
        "SELECT count(*) FROM kombu_message m JOIN kombu_queue q ON q.id = m.queue_id "
        "WHERE q.name = 'celery'"
    )
    return int(number)


def test_a_submitter_makes_jobs(shop: Submitter, sql: Sql, beat: Beat) -> None:
    first = pgbeat.submit(shop.add, 1)
    assert (first.state, first.queue, messages(sql)) == ("pending", "celery", 1)
    again = [pgbeat.submit(shop.add, 1, unique_key="k", unique_for="1 day").id for _ in range(2)]
    assert again[0] == again[1]
    waiting = [pgbeat.submit(shop.add, 1, lane="one") for _ in range(2)]
    assert {job.dispatched_at for job in waiting} == {None}
    later = pgbeat.submit(shop.add, 1, countdown=3600)
    assert later.state == "scheduled"
    with pytest.raises(pgbeat.PgbeatError, match="no lane 'none'"):
        pgbeat.submit(shop.add, 1, lane="none")
    before = messages(sql)
    beat().run_due()
    assert messages(sql) == before + 1  # the one that got the lane's slot


def test_a_submitter_makes_jobs_that_wait_for_others(shop: Submitter, sql: Sql, beat: Beat) -> None:
    parent = pgbeat.submit(shop.add, 1)
    child = pgbeat.submit(shop.add, 2, depends_on=[parent])
    assert (child.is_blocked, child.unfinished_parents) == (True, 1)
    with pytest.raises(pgbeat.PgbeatError, match="there is no job"):
        pgbeat.submit(shop.add, 2, depends_on=["00000000-0000-0000-0000-000000000001"])
    ended = make_job(sql, state="completed", created_by=parent.created_by)
    late = pgbeat.submit(shop.add, 2, depends_on=[ended])
    beat().run_due()
    beat().run_due()
    assert count(sql, f"id = '{late.id}' AND NOT is_blocked") == 1


def test_a_submitter_makes_many_and_groups(shop: Submitter, sql: Sql) -> None:
    ids = pgbeat.submit_many([shop.add.s(n) for n in range(150)], app=shop.app)
    assert (len(set(ids)), count(sql), messages(sql)) == (150, 150, 150)
    ids = pgbeat.submit_many([shop.add.s(7) for _ in range(3)], app=shop.app, unique=True)
    assert len(set(ids)) == 1
    again = pgbeat.submit_many([shop.add.s(7)], app=shop.app, unique=True)
    assert again == ids[:1]
    new = pgbeat.submit_group(
        [shop.add.s(1), {"task": "tests.add", "key": "b"}, shop.add.s(3)],
        mode="sequential",
        name="g",
        callback=shop.add.s(4),
        app=shop.app,
    )
    assert (new.group.name, new.group.state, len(new.jobs)) == ("g", "running", 3)
    assert new.callback is not None and new.callback.is_blocked
    graph = pgbeat.submit_group(
        [{"task": "tests.add", "key": "a"}, {"task": "tests.add", "depends_on": ["a"]}],
        app=shop.app,
    )
    assert [job.is_blocked for job in graph.jobs] == [False, True]


def test_a_submitter_sends_tasks(shop: Submitter, sql: Sql) -> None:
    sent = shop.add.apply_async((1, 2), countdown=60, priority=3)
    assert sent.id
    shop.add.delay(1)
    assert (messages(sql), count(sql)) == (2, 0)
    unique = shop.app.tasks["tests.unique"]
    assert unique.delay(1).id == unique.delay(1).id
    shop.app.tasks["tests.in_lane"].delay(1)
    assert (messages(sql), count(sql)) == (3, 2)


def test_a_submitter_sends_in_its_own_transaction(shop: Submitter, sql: Sql) -> None:
    engine = create_engine(postgres_url(shop.dsn))
    with engine.connect() as connection:
        for end in (connection.rollback, connection.commit):
            pgbeat.submit(shop.add, 1, connection=connection)
            pgbeat.submit(shop.add, 1, connection=connection, lane="one", unique_key="k")
            with pgbeat.in_transaction(connection, shop.app) as block:
                shop.add.delay(2)
                shop.app.tasks["tests.unique"].delay(2)
                block.send_many(shop.add, [(n,) for n in range(120)])
            end()
            if end == connection.rollback:
                assert (messages(sql), count(sql)) == (0, 0)
    engine.dispose()
    assert (messages(sql), count(sql)) == (123, 3)


@pytest.mark.anyio
async def test_a_submitter_sends_by_asyncio(shop: Submitter, sql: Sql) -> None:
    url = postgres_url(shop.dsn).set(drivername="postgresql+psycopg")
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await aio.submit(shop.add, 1, connection=connection)
        async with pgbeat.in_transaction(connection, shop.app):
            shop.add.delay(1)
    await aio.submit_group([shop.add.s(1)], app=shop.app)
    await engine.dispose()
    assert (messages(sql), count(sql)) == (3, 2)


def test_a_submitter_makes_jobs_in_sql(shop: Submitter, sql: Sql) -> None:
    with psycopg.connect(shop.dsn, autocommit=True) as connection:

        def submit(more: str = "") -> Any:
            statement = f"SELECT pgbeat.submit('tests.add', '[1]'{more})"
            [(job,)] = connection.execute(statement).fetchall()
            return job

        parent = submit()
        assert submit(", unique_key => 'k'") == submit(", unique_key => 'k'")
        submit(", lane => 'one', run_at => now() + interval '1 hour'")
        submit(f", depends_on => ARRAY['{parent}'::uuid]")
        with pytest.raises(psycopg.errors.CheckViolation, match="no lane"):
            submit(", lane => 'none'")
        name = connection.info.user
    assert sql("SELECT DISTINCT created_by FROM pgbeat.jobs") == [(f"user:{name}",)]
    assert count(sql) == 4
    assert count(sql, "is_blocked AND unfinished_parents = 1") == 1


def test_a_submitter_emits(shop: Submitter, sql: Sql) -> None:
    assert pgbeat.emit("k", 1, app=shop.app)
    with psycopg.connect(shop.dsn) as connection:
        assert connection.execute("SELECT pgbeat.emit('k')").fetchall() == [(False,)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT FROM pgbeat.events")
    assert sql("SELECT key, value FROM pgbeat.events") == [("k", 1)]


def test_functions_of_the_owner_are_not_for_everybody(sql: Sql, ordinary_role: Role) -> None:
    sql(f"GRANT USAGE ON SCHEMA pgbeat TO {ordinary_role.name}")
    names = [
        n
        for (n,) in sql(
            "SELECT oid::regprocedure::text FROM pg_proc "
            "WHERE pronamespace = 'pgbeat'::regnamespace AND prosecdef "
            "AND proname LIKE '%\\_as\\_owner'"
        )
    ]
    assert len(names) == 8
    for name in names:
        [(may,)] = sql("SELECT has_function_privilege(%s, %s, 'EXECUTE')", ordinary_role.name, name)
        assert not may, name


def test_migrate_takes_a_restored_function_from_everybody(
    database: str, sql: Sql, ordinary_role: Role
) -> None:
    sql("DROP FUNCTION pgbeat.find_jobs_as_owner(uuid[])")
    assert run(database, "migrate").exit_code == 0
    may = "SELECT has_function_privilege(%s, 'pgbeat.find_jobs_as_owner(uuid[])', 'EXECUTE')"
    assert sql(may, ordinary_role.name) == [(False,)]


def test_a_caller_can_not_lead_its_functions_astray(shop: Submitter, sql: Sql) -> None:
    """Its own tables and functions come first in its search path, and are never used."""
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE unfinished_jobs (id int)")
        connection.execute(
            "CREATE FUNCTION pg_temp.now() RETURNS timestamptz LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE 'led astray by %', current_user; END $$"
        )
        connection.execute("SET search_path = pg_temp, pg_catalog, public")
        connection.execute("SELECT pgbeat.submit('tests.add')")
    assert count(sql) == 1


_SHIP = """
import django; django.setup()
from django.db.transaction import atomic
from tests.support.django_project.shop.models import Order
from tests.support.django_project.shop.tasks import ship
import pgbeat
with atomic():
    ship.delay(Order.objects.create(name="kept").pk)
    pgbeat.submit(ship, 1)
try:
    with atomic():
        ship.delay(Order.objects.create(name="lost").pk)
        raise RuntimeError
except RuntimeError:
    pass
"""


def test_a_submitter_sends_in_a_block_of_djangos(
    database: str, sql: Sql, with_profile: Callable[[Profile], Role]
) -> None:
    assert Shop(database).manage("migrate").returncode == 0
    role = with_profile("submit")
    roles.own_tables(database, role)
    shipped = Shop(role.dsn).run("-c", _SHIP)
    assert shipped.returncode == 0, shipped.stderr
    assert sql("SELECT name FROM shop_order") == [("kept",)]
    assert (messages(sql), count(sql)) == (2, 1)
