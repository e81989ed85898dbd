"""Makes a real server refuse to write rows of a table, by an error of a chosen SQLSTATE."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.rows import Sql


@contextmanager
def refusing(sql: Sql, table: str, sqlstate: str, only: str = "true") -> Iterator[None]:
    """Has each insert of a row for which the condition `only` (of `NEW`) holds raise that error."""
    sql(
        "CREATE OR REPLACE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN RAISE EXCEPTION ''the server is full'' USING ERRCODE = TG_ARGV[0]; END'"
    )
    sql(
        f"CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW WHEN ({only}) "
        f"EXECUTE FUNCTION public.refuse('{sqlstate}')"
    )
    yield
    sql(f"DROP TRIGGER refuse ON {table}")
