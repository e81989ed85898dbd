"""Makes roles with the rights of a profile, for the processes under test."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import psycopg
from psycopg import sql

from pgbeat.access import roles
from pgbeat.access.audit import Author
from pgbeat.access.roles import Profile
from pgbeat.config import postgres_url
from pgbeat.database import connections
from pgbeat.database.migrations import migrate
from tests.support.databases import Role

#: Whether workers and beats under test connect as roles with just their profile.
ARE_USED = bool(os.environ.get("PGBEAT_TEST_ROLES"))


def make(dsn: str, profile: Profile) -> Role:
    """Makes a role that may log in, with the rights of a profile, and pgbeat's tables before."""
    url, name = postgres_url(dsn), f"{profile}_{uuid4().hex[:12]}"
    migrate.upgrade(url)
    with connections.engine(url, "tests").begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
        connection.exec_driver_sql("SELECT pgbeat.adopt_broker()")
        roles.grant(connection, Author("default", "user:tests", "cli"), name, profile)
    own_url = url.set(
        drivername="postgresql", username=name, password="secret" if url.password else None
    )
    return Role(name, own_url.render_as_string(hide_password=False))


def own_tables(dsn: str, role: Role) -> None:
    """Lets a role make tables beside the broker's, and use those of the test."""
    name = sql.Identifier(role.name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("GRANT CREATE ON SCHEMA public TO {}").format(name))
        for (table,) in connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename !~ '^kombu_'"
        ).fetchall():
            grant = sql.SQL("GRANT ALL ON {} TO {}")
            connection.execute(grant.format(sql.Identifier(table), name))


def drop(dsn: str, role: Role) -> None:
    name = sql.Identifier(role.name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(name))
        connection.execute(sql.SQL("DROP ROLE {}").format(name))


@contextmanager
def with_profile(dsn: str, profile: Profile) -> Iterator[Role]:
    """Makes a role with the rights of a profile, dropped at the end."""
    role = make(dsn, profile)
    yield role
    drop(dsn, role)
