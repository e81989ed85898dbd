"""Explains the statements that are sent, as Postgres plans them with and without parameters."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, event

from pgbeat.database import connections
from tests.support.many_rows import BIG
from tests.support.partitions import history_of

_BIG = re.compile(rf"pgbeat\.(\w+_)?({'|'.join(BIG)})\b")


class Scan(NamedTuple):
    """A look at a big table in a plan."""

    kind: str
    table: str
    by: str | None
    #: Rows that it met, those too that it left aside.
    rows: int
    #: Pages of the table, or of the partition.
    size: int


class Plan(NamedTuple):
    """What a statement did."""

    statement: str
    scans: list[Scan]
    #: Of the server, of 8 kB; indexes' too.
    pages: int
    #: Of the plan that Postgres would keep for any parameters, if it were the cheaper one.
    kept: list[Scan]
    #: As Postgres estimates it. Above `jit_above_cost`, a server with LLVM compiles the statement.
    cost: float


def pages(connection: Connection, statement: str, *parameters: Any) -> int:
    """Returns how many pages a statement reads or finds in memory; it is rolled back."""
    raw = connections.driver(connection)
    with raw.transaction(force_rollback=True):
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}".encode()
        [(plan,)] = raw.execute(explain, parameters).fetchall()
    top = plan[0]["Plan"]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])


@contextmanager
def explained(connection: Connection) -> Iterator["Explained"]:
    """Explains what a connection sends to the big tables within the block."""
    found = Explained(connection)
    try:
        yield found
    finally:
        found.stop()


_SIZES = """
    SELECT relname, pg_relation_size(oid) / 8192 FROM pg_class
     WHERE relnamespace = 'pgbeat'::regnamespace AND relkind = 'r'
"""


class Explained:
    """Explains all that a connection sends to the big tables."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.plans: list[Plan] = []
        self._sizes = dict(connections.driver(connection).execute(_SIZES).fetchall())
        event.listen(connection, "before_cursor_execute", self._note)

    def of(self, what: Callable[..., Any], *args: Any) -> list[Plan]:
        """Returns the plans of what a call sends; it gets the connection last."""
        self.plans = []
        what(*args, self.connection)
        return self.plans

    def stop(self) -> None:
        """Explains no more."""
        event.remove(self.connection, "before_cursor_execute", self._note)

    def _note(self, _: Any, __: Any, statement: str, parameters: Any, ___: Any, many: bool) -> None:
        if many or not _BIG.search(statement):
            return
        raw = connections.driver(self.connection)
        inside = raw.info.transaction_status == TransactionStatus.INTRANS
        raw.execute("SAVEPOINT explained" if inside else "BEGIN")
        try:
            [(plan,)] = raw.execute(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}".encode(), parameters
            ).fetchall()
            kept = self._kept(raw, statement, parameters, plan[0]["Plan"]["Total Cost"])
        finally:
            raw.execute("ROLLBACK TO explained" if inside else "ROLLBACK")
        scans = list(self._scans(plan[0]["Plan"]))
        top = plan[0]["Plan"]
        pages = top["Shared Hit Blocks"] + top["Shared Read Blocks"]
        self.plans.append(Plan(statement, scans, pages, kept, top["Total Cost"]))

    def _kept(self, raw: Any, statement: str, parameters: Any, cost: float) -> list[Scan]:
        """Explains a statement without parameters too, as Postgres may plan a prepared one."""
        if raw.info.server_version < 160000:
            return []
        query = PostgresQuery(Transformer(raw))
        query.convert(statement, parameters)
        result = raw.pgconn.exec_(b"EXPLAIN (GENERIC_PLAN, FORMAT JSON) " + query.query)
        assert result.get_value(0, 0) is not None, result.error_message
        import json

        [plan] = json.loads(result.get_value(0, 0))
        # What planning costs, by choose_custom_plan in Postgres's plancache.c.
        tables = len({node["Alias"] for node in _nodes(plan["Plan"]) if "Alias" in node})
        if plan["Plan"]["Total Cost"] >= cost + 2.5 * (tables + 1):
            return []
        return list(self._scans(plan["Plan"]))

    def _scans(self, plan: Mapping[str, Any]) -> Iterator[Scan]:
        for node in _nodes(plan):
            relation = node.get("Relation Name", "")
            table = history_of(relation)
            # A bitmap's rows are met by its index scans, which have no table.
            if node["Node Type"] == "Bitmap Index Scan":
                table = history_of(node["Index Name"]).split("_")[0]
            if table not in BIG or not node["Node Type"].endswith("Scan"):
                continue
            met = sum(
                node.get(key, 0)
                for key in (
                    "Actual Rows",
                    "Rows Removed by Filter",
                    "Rows Removed by Index Recheck",
                )
            )
            rows = round(met * node.get("Actual Loops", 1))
            size = self._sizes.get(relation, 0)
            yield Scan(node["Node Type"], table, node.get("Index Name"), rows, size)


def _nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def most(plan: Mapping[str, Any]) -> int:
    """Returns the most rows that a node of a plan met, with those that it left aside."""
    met = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Join Filter")
    return max(
        round(sum(float(node.get(key, 0)) for key in met) * float(node.get("Actual Loops", 1)))
        for node in _nodes(plan)
    )
