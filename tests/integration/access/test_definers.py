"""Functions that run as the schema's owner run nothing of those who can call them."""

from collections.abc import Callable

import psycopg
import pytest

from pgbeat.access.roles import PROFILES, Profile
from tests.support.databases import Role
from tests.support.rows import Sql

#: The columns that the trigger of messages reads.
COLUMNS = {"queue_id": "bigint", "visible": "boolean", "available_at": "timestamptz"}
#: A type whose cast runs code, and a table with a column of it.
TRAP = """
    CREATE TYPE pg_temp.trap AS ENUM ('x');
    CREATE FUNCTION pg_temp.spring(pg_temp.trap) RETURNS {type} LANGUAGE plpgsql AS $$
    BEGIN RAISE 'ran as %', current_user; END $$;
    CREATE CAST (pg_temp.trap AS {type}) WITH FUNCTION pg_temp.spring(pg_temp.trap) AS IMPLICIT;
    CREATE TEMPORARY TABLE messages ({columns});
    CREATE TRIGGER announce AFTER INSERT ON messages REFERENCING NEW TABLE AS fresh
        FOR EACH STATEMENT EXECUTE FUNCTION pgbeat.announce_messages();
    INSERT INTO messages VALUES ({values})
"""


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", COLUMNS)
def test_the_trigger_of_messages_runs_casts_of_others_as_themselves(
    with_profile: Callable[[Profile], Role], profile: Profile, name: str
) -> None:
    columns = ", ".join(f"{n} {t}" for n, t in (COLUMNS | {name: "pg_temp.trap"}).items())
    row = {"queue_id": "1", "visible": "true", "available_at": "NULL"} | {name: "'x'"}
    values = ", ".join(row[column] for column in COLUMNS)
    trap = TRAP.format(type=COLUMNS[name], columns=columns, values=values)
    role = with_profile(profile)
    with (
        psycopg.connect(role.dsn) as connection,
        pytest.raises(psycopg.errors.RaiseException, match=f"ran as {role.name}"),
    ):
        connection.execute(trap.encode())


def test_no_trigger_of_the_owner_is_for_everybody(sql: Sql) -> None:
    rows = sql(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'pgbeat'::regnamespace AND prosecdef "
        "AND prorettype = 'trigger'::regtype AND has_function_privilege('public', oid, 'EXECUTE')"
    )
    assert rows == []
