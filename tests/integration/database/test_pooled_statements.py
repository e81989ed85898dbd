"""Prepared statements behind a pooler without support for them: never another statement's."""

from pathlib import Path

import psycopg
import pytest
from celery import Celery
from sqlalchemy import text

from pgbeat.cli.terminal.target import Target
from pgbeat.config import postgres_url
from pgbeat.database import connections
from pgbeat.database.kept import kept
from pgbeat.database.prepared import Statement
from pgbeat.web.backend import WebBackend
from tests.support.pgbouncer import needs_pgbouncer, pooler


def test_statements_of_different_sql_have_different_names() -> None:
    one, other = Statement("put", "SELECT 1"), Statement("put", "SELECT 2")
    assert one.name != other.name
    assert one.name == Statement("put", "SELECT 1").name
    assert len(one.name) < 64  # the server cuts what is longer


@needs_pgbouncer
@pytest.mark.parametrize("kind", ["engine", "kept"])
def test_the_drivers_own_names_meet_nobody_elses(database: str, tmp_path: Path, kind: str) -> None:
    """Psycopg counts the statements that it prepares: its first has the same name everywhere."""
    with pooler(database, tmp_path, default_pool_size=1) as pooled:
        url = postgres_url(pooled.url)
        for value in ("a", "b"):
            statement = text(f"SELECT '{value}' || CAST(:x AS text)")
            opened = (
                connections.engine(url, value).connect() if kind == "engine" else kept(url, value)
            )
            with opened as connection:
                for _ in range(10):
                    assert connection.scalar(statement, {"x": "x"}) == f"{value}x"
                    if kind == "engine":
                        connection.commit()


def test_a_session_of_its_own_prepares(database: str) -> None:
    """Without a pooler nothing is parsed again and again."""
    with kept(postgres_url(database), "prepares") as connection:
        for _ in range(10):
            connection.execute(text("SELECT CAST(:x AS text)"), {"x": "x"})
        names = connection.scalar(text("SELECT count(*) FROM pg_prepared_statements"))
        assert names > 0


@needs_pgbouncer
def test_the_web_process_and_commands_compile_nothing(database: str, tmp_path: Path) -> None:
    """Behind a pooler each of their transactions turns `jit` off."""
    with pooler(database, tmp_path) as pooled:
        app = Celery("web", broker=f"pgbeat+{pooled.url}", set_as_current=False)
        backend, target = WebBackend(app), Target(pooled.url)
        with (
            backend.transaction() as page,
            target.transaction() as command,
            target.unit() as change,
        ):
            for connection in (page, command, change.connection):
                assert not connections.has_own_session(connection)
                assert connection.scalar(text("SHOW jit")) == "off"
        backend.dispose()
        app.close()
        with psycopg.connect(pooled.url) as other:
            assert other.execute("SHOW jit").fetchone() == ("on",)
