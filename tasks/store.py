"""The example's tables, in the schema `example` of the same Postgres, and their first rows.

They hold a vocabulary of relationship types, as an extraction for a knowledge graph builds it: a
type may have a category, has evidence for and against it, and is merged into another when it is no
longer used. Another table holds prices that are fetched from outside.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Integer,
    MetaData,
    Numeric,
    Table,
    Text,
    create_engine,
    func,
    insert,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.engine import Connection
from sqlalchemy.pool import NullPool

from tasks import URL

metadata = MetaData(schema="example")

#: Each task opens its own connection, so a pool's processes share none.
engine = create_engine(
    URL, poolclass=NullPool, connect_args={"application_name": "example", "connect_timeout": 10}
)

categories = Table(
    "categories",
    metadata,
    Column("name", Text, primary_key=True),
    Column("refreshed_at", DateTime(timezone=True)),
)

types = Table(
    "types",
    metadata,
    Column("name", Text, primary_key=True),
    Column("category", Text, ForeignKey(categories.c.name)),
    # `llm_generated` until a category refresh puts it into a category.
    Column("source", Text, nullable=False, server_default="curated"),
    Column("active", Boolean, nullable=False, server_default=text("true")),
    Column("uses", Integer, nullable=False, server_default="0"),
    Column("supporting", Integer, nullable=False, server_default="0"),
    Column("contradicting", Integer, nullable=False, server_default="0"),
    Column("epistemic_status", Text),
    Column("measured_at", DateTime(timezone=True)),
    CheckConstraint("source IN ('curated', 'llm_generated', 'integrated')", name="types_source"),
    CheckConstraint("category IS NOT NULL OR source = 'llm_generated'", name="types_category"),
)

#: Changes of the vocabulary, in order.
changes = Table(
    "changes",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("type", Text, nullable=False),
    Column("change", Text, nullable=False),
    Column("into", Text),
    CheckConstraint(
        "change IN ('added', 'integrated', 'deactivated', 'merged', 'deleted')",
        name="changes_change",
    ),
)

prices = Table(
    "prices",
    metadata,
    Column("area", Text, primary_key=True),
    Column("starts_at", DateTime(timezone=True), primary_key=True),
    Column("eur_per_mwh", Numeric(10, 2), nullable=False),
    Column("fetched_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

#: The verbs of the types, by category.
VERBS = {
    "causal": ("causes", "prevents", "enables", "triggers", "inhibits"),
    "temporal": ("precedes", "follows", "during", "until", "since"),
    "structural": ("part_of", "contains", "composes", "connects", "borders"),
    "logical": ("implies", "contradicts", "supports", "refutes", "assumes"),
}
_MANNERS = ("", "directly_", "partly_")
#: Processes that create the schema at once wait for each other on this advisory lock.
_CREATION_LOCK = 0x6578616D706C65


def begin(*, snapshot: bool = False) -> AbstractContextManager[Connection]:
    """Opens a transaction, committed unless the block raises. A `snapshot` sees a single moment."""
    level: Literal["REPEATABLE READ", "READ COMMITTED"]
    level = "REPEATABLE READ" if snapshot else "READ COMMITTED"
    return engine.execution_options(isolation_level=level).begin()


@contextmanager
def vocabulary() -> Iterator[Connection]:
    """Opens a transaction that changes the vocabulary. Others wait for it, but readers don't."""
    with begin() as connection:
        connection.execute(text("LOCK TABLE example.types IN SHARE ROW EXCLUSIVE MODE"))
        yield connection


def create(connection: Connection) -> None:
    """Creates missing parts of the schema, the tables and the first rows.

    The first rows are 60 active types and 5 inactive ones.
    """
    connection.execute(select(func.pg_advisory_xact_lock(_CREATION_LOCK)))
    connection.execute(text("CREATE SCHEMA IF NOT EXISTS example"))
    metadata.create_all(connection)
    if connection.scalar(select(func.count()).select_from(categories)):
        return
    connection.execute(insert(categories), [{"name": name} for name in VERBS])
    rows = [
        {
            "name": f"{manner}{verb}",
            "category": category,
            "uses": 3 + 7 * (number + 1) % 23,
            "supporting": 5 * (number + 1) % 13,
            "contradicting": 3 * number % 7,
            "active": True,
        }
        for category, verbs in VERBS.items()
        for number, (verb, manner) in enumerate((v, m) for m in _MANNERS for v in verbs)
    ]
    rows += [
        {
            "name": f"rarely_{verb}",
            "category": "causal",
            "uses": 0,
            "supporting": 0,
            "contradicting": 0,
            "active": False,
        }
        for verb in VERBS["causal"]
    ]
    connection.execute(upsert(types).on_conflict_do_nothing(), rows)
