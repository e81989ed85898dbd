"""Messages: rows of the broker's tables, in the format of kombu's SQLAlchemy transport."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlalchemy import Connection, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.elements import TextClause

_quote = postgresql.dialect().identifier_preparer.quote  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class BrokerTables:
    """The broker's tables, named as in the transport's options. Table names are the operator's."""

    queue: str = "kombu_queue"
    message: str = "kombu_message"

    def exist(self, connection: Connection) -> bool:
        """Whether both tables and their sequences are there, in the connection's search path."""
        names = [_quote(self.queue), _quote(self.message)]
        names += ["queue_id_sequence", "message_id_sequence"]
        return all(connection.scalar(_EXISTS, {"name": name}) for name in names)

    def missing_privileges(self, connection: Connection) -> list[str]:
        """What the role may not do that publishing needs, such as `INSERT on kombu_message`."""
        needs = [
            (_quote(self.queue), "SELECT, INSERT", _MAY_USE_TABLE),
            (_quote(self.message), "SELECT, INSERT", _MAY_USE_TABLE),
            ("queue_id_sequence", "USAGE", _MAY_USE_SEQUENCE),
            ("message_id_sequence", "USAGE", _MAY_USE_SEQUENCE),
        ]
        return [
            f"{privilege} on {name}"
            for name, privileges, query in needs
            for privilege in privileges.split(", ")
            if not connection.scalar(query, {"name": name, "privilege": privilege})
        ]

    def put(self, connection: Connection, batch: Sequence[tuple[str, str]]) -> None:
        """Writes messages, (queue, payload) each, in the order given; makes missing queues."""
        if not batch:
            return
        self.declare(connection, {queue for queue, _ in batch})
        connection.execute(
            self._put,
            {"batch": json.dumps([{"queue": q, "payload": p} for q, p in batch])},
        )

    def declare(self, connection: Connection, queues: Iterable[str]) -> None:
        """Makes the queues that are missing."""
        wanted = set(queues)
        known = set(connection.scalars(self._known, {"queues": sorted(wanted)}))
        if wanted - known:
            connection.execute(self._declare, {"queues": sorted(wanted - known)})

    def depths(self, connection: Connection) -> dict[str, int]:
        """Messages waiting in each queue."""
        return {str(name): int(count) for name, count in connection.execute(self._depths)}

    def _sql(self, template: str) -> TextClause:
        return text(template.format(queue=_quote(self.queue), message=_quote(self.message)))

    @cached_property
    def _known(self) -> TextClause:
        return self._sql("SELECT name FROM {queue} WHERE name = ANY (CAST(:queues AS text[]))")

    @cached_property
    def _declare(self) -> TextClause:
        return self._sql(
            "INSERT INTO {queue} (id, name) SELECT nextval('queue_id_sequence'), name "
            "FROM unnest(CAST(:queues AS text[])) AS d (name) ON CONFLICT (name) DO NOTHING"
        )

    @cached_property
    def _put(self) -> TextClause:
        return self._sql(
            "INSERT INTO {message} (id, visible, payload, version, queue_id) "
            "SELECT nextval('message_id_sequence'), true, d.payload, 1, q.id "
            "FROM ROWS FROM ("
            "json_to_recordset(CAST(:batch AS json)) AS (queue text, payload text)) "
            "WITH ORDINALITY AS d (queue, payload, position) JOIN {queue} q ON q.name = d.queue "
            "ORDER BY d.position"
        )

    @cached_property
    def _depths(self) -> TextClause:
        return self._sql(
            "SELECT q.name, count(m.id) FROM {queue} q "
            "LEFT JOIN {message} m ON m.queue_id = q.id AND m.visible GROUP BY q.name ORDER BY 1"
        )


_EXISTS = text("SELECT to_regclass(:name) IS NOT NULL")
_MAY_USE_TABLE = text("SELECT has_table_privilege(:name, :privilege)")
_MAY_USE_SEQUENCE = text("SELECT has_sequence_privilege(:name, :privilege)")
