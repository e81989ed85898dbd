"""Databases that are lent again are as new."""

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy.engine import make_url

from pgbeat.testing.databases import Databases

_ROWS = "INSERT INTO kombu_queue (name) SELECT 'q' || i FROM generate_series(1, %s) i"
_SEEN = """
SELECT (SELECT array_agg(name::text) FROM kombu_queue),
       (SELECT reltuples FROM pg_class WHERE oid = 'kombu_queue'::regclass),
       (SELECT setting FROM pg_settings WHERE name = 'session_replication_role')
"""


def _oid(dsn: str, *statements: str) -> int:
    """Runs the statements; returns which database it is, whatever its name."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
        found = connection.execute(
            "SELECT oid FROM pg_database WHERE datname = current_database()"
        ).fetchone()
    assert found
    return int(found[0])


@pytest.fixture(scope="module")
def databases(server: str) -> Iterator[Databases]:
    """Lends databases that no other file's tests have had."""
    databases = Databases(server)
    yield databases
    databases.close()


@pytest.mark.parametrize(
    ("statements", "is_kept"),
    [
        ((_ROWS % 3,), True),
        ((_ROWS % 3, "ANALYZE kombu_queue"), True),
        ((_ROWS % 5000,), True),
        (("CREATE TABLE more ()",), False),
        (("DROP TABLE kombu_message",), False),
        (("ALTER TABLE kombu_queue ALTER name SET DEFAULT 'x'",), False),
        (("DROP TABLE kombu_message", "CREATE TABLE kombu_message ()"), False),
    ],
    ids=["few rows", "statistics", "many rows", "made", "dropped", "altered", "made anew"],
)
def test_a_database_is_as_new(
    databases: Databases, statements: tuple[str, ...], is_kept: bool
) -> None:
    """It is the same one, emptied, if only rows were changed; else another."""
    for _ in range(2):
        with databases.lent() as dsn:
            before = _oid(dsn, *statements)
        with databases.lent() as dsn:
            assert (_oid(dsn) == before) is is_kept
            with psycopg.connect(dsn) as connection:
                assert connection.execute(_SEEN).fetchone() == (["celery"], -1, "origin")


def test_a_role_that_is_no_superuser(server: str) -> None:
    """It may make databases and end their sessions; those that it lends are emptied, too."""
    role = f"maker_{uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN CREATEDB PASSWORD 'x' IN ROLE pg_signal_backend")
        try:
            url = make_url(server).set(username=role, password="x")
            databases = Databases(url.render_as_string(hide_password=False))
            with databases.lent() as dsn:
                before = _oid(dsn, _ROWS % 3)
            with databases.lent() as dsn:
                assert _oid(dsn) == before
                with psycopg.connect(dsn) as connection:
                    assert connection.info.user == role
                    assert connection.execute(_SEEN).fetchone() == (["celery"], -1, "origin")
            databases.close()
        finally:
            admin.execute(f"DROP ROLE {role}")
