"""Runs prepared statements on a psycopg connection, with as little Python as possible.

A worker's throughput depends on what a message costs here. Cursors, adapters and row factories are
left out; parameters and results are libpq's text. `send` and `poll` let an event loop run while
the server works.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol

import psycopg
from psycopg import generators
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from pgbeat.database import connections
from pgbeat.database.watched import is_alive

Parameter = bytes | None


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement with parameters $1, $2, … that sessions prepare by its name."""

    label: str
    sql: str
    #: The label and a hash of the SQL: a session that a pooler hands to several apps may have the
    #: same statement under this name, but never another one.
    name: str = field(init=False)

    def __post_init__(self) -> None:
        digest = sha256(self.sql.encode()).hexdigest()[:16]
        object.__setattr__(self, "name", f"pgbeat_{self.label}_{digest}")


def array(numbers: Sequence[int]) -> bytes:
    """Returns numbers as a Postgres array."""
    return b"{%s}" % ",".join(map(str, numbers)).encode() if numbers else b"{}"


#: The session has no statement of that name, or had it before.
_UNPREPARED = (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement)


class PreparedConnection:
    """Runs statements in one session. Not for two threads at once."""

    def __init__(
        self,
        connection: "psycopg.Connection[Any]",
        prepares: bool = True,
        isolates: bool = False,
        listens: bool = True,
    ) -> None:
        self.connection = connection
        self.pgconn = connection.pgconn
        #: Behind a transaction-mode pooler nothing can be prepared.
        self._prepares = prepares
        #: Whether each statement needs a transaction: under the default isolation level of the
        #: server, the database or the role it might have to be repeated, and a session that other
        #: clients may share keeps that default.
        self.isolates = isolates
        self._is_isolated = False
        self._prepared: set[str] = set()
        self._result: PGresult | None = None
        self._sent: tuple[Statement, tuple[Parameter, ...]]
        self._heard: list[tuple[str, str]] = []
        if listens:  # they are kept until `notifications` is called
            connection.add_notify_handler(self._hear)
        #: Whether a statement was sent whose end has not been read.
        self.is_busy = False

    def _hear(self, notification: psycopg.Notify) -> None:
        self._heard.append((notification.channel, notification.payload))

    def fileno(self) -> int:
        """Returns the socket."""
        return int(self.pgconn.socket)

    def run(self, statement: Statement, *parameters: Parameter) -> PGresult:
        """Executes a statement and returns the result. Raises psycopg's errors."""
        try:
            return self._run(statement, *parameters)
        except _UNPREPARED as error:
            return self._run_again(error, statement, *parameters)

    def _run(self, statement: Statement, *parameters: Parameter) -> PGresult:
        self.send(statement, *parameters)
        self.is_busy = False
        return self._finish()

    def _run_again(
        self, error: psycopg.Error, statement: Statement, *parameters: Parameter
    ) -> PGresult:
        """Runs a statement that the session did not have, or had already.

        psycopg sends `DEALLOCATE ALL` after a ROLLBACK (also to a savepoint), DROP or ALTER of its
        own, so the session may have lost all statements: they are prepared again. Raises `error` in
        a transaction, which is aborted by now and may be repeated.
        """
        if isinstance(error, psycopg.errors.DuplicatePreparedStatement):
            self._prepares = False  # a pooler gives each statement another session
        if self.pgconn.transaction_status != TransactionStatus.IDLE:
            raise error
        try:
            return self._run(statement, *parameters)
        except _UNPREPARED:
            if not self._prepares:
                raise
            self._prepares = False  # again: a pooler, too
            return self._run(statement, *parameters)

    def command(self, command: str) -> None:
        """Executes a statement that is not worth preparing, such as COMMIT."""
        self.pgconn.send_query(command.encode())
        self._checked(self.connection.wait(generators.execute(self.pgconn))[-1])

    def _isolate(self) -> None:
        if self.pgconn.transaction_status == TransactionStatus.IDLE:
            self.command(connections.BEGIN)
            self._is_isolated = True

    def _ended(self, result: PGresult | None) -> PGresult:
        """Returns the result, once its transaction has ended with it."""
        self._end_transaction(failed=result is None or result.status == ExecStatus.FATAL_ERROR)
        return self._checked(result)

    def _end_transaction(self, *, failed: bool) -> None:
        is_isolated, self._is_isolated = self._is_isolated, False
        if is_isolated and self.pgconn.transaction_status != TransactionStatus.UNKNOWN:
            self.command("ROLLBACK" if failed else "COMMIT")

    def send(self, statement: Statement, *parameters: Parameter) -> None:
        """Sends a statement; `poll` returns the result. Raises `ValueError` for NUL."""
        if any(b"\0" in parameter for parameter in parameters if parameter):
            raise ValueError("a text must not contain NUL, where libpq would cut it off")
        if self.isolates:
            self._isolate()
        if not self._prepares:
            self.pgconn.send_query_params(statement.sql.encode(), list(parameters))
        else:
            if statement.name not in self._prepared:
                try:
                    self._prepare(statement)
                except psycopg.Error:
                    self._end_transaction(failed=True)
                    raise
            self.pgconn.send_query_prepared(statement.name.encode(), list(parameters))
        self.is_busy, self._result, self._sent = True, None, (statement, parameters)

    def _prepare(self, statement: Statement) -> None:
        self.pgconn.send_prepare(statement.name.encode(), statement.sql.encode())
        self._checked(self.connection.wait(generators.execute(self.pgconn))[-1])
        self._prepared.add(statement.name)

    def flush(self) -> None:
        """Sends what the socket has not taken yet."""
        if self.pgconn.flush():
            self.connection.wait(generators.send(self.pgconn))

    def poll(self) -> PGresult | None:
        """Reads what has arrived. Returns the result of what was sent, once it is complete."""
        pgconn = self.pgconn
        pgconn.consume_input()
        while self.is_busy and not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                self.is_busy = False
                if self._result is None:
                    raise psycopg.OperationalError("the connection was lost")
                return self._ended(self._result)
            self._result = result
        return None

    def finish(self) -> PGresult:
        """Waits for the result of what was sent, and returns it."""
        try:
            return self._finish()
        except psycopg.errors.InvalidSqlStatementName as error:
            statement, parameters = self._sent
            return self._run_again(error, statement, *parameters)

    def _finish(self) -> PGresult:
        results = self.connection.wait(generators.execute(self.pgconn))
        self.is_busy = False
        return self._ended(results[-1] if results else self._result)

    def notifications(self) -> list[tuple[str, str]]:
        """Returns channel and payload of the notifications that have been read from the socket."""
        while (notification := self.pgconn.notifies()) is not None:
            self._heard.append((notification.relname.decode(), notification.extra.decode()))
        heard, self._heard = self._heard, []
        return heard

    def is_in_statement(self) -> bool:
        """Returns whether the answer of the last statement has not been read to its end."""
        return self.pgconn.transaction_status == TransactionStatus.ACTIVE

    def is_alive(self) -> bool:
        """Returns whether the connection is good, as far as known without asking the server."""
        if self.is_busy and not self.connection.closed:
            return self.pgconn.transaction_status != TransactionStatus.UNKNOWN
        return is_alive(self.connection)

    def _checked(self, result: PGresult | None) -> PGresult:
        if result is None:
            raise psycopg.OperationalError("the connection was lost")
        if result.status == ExecStatus.FATAL_ERROR:
            error = psycopg.errors.error_from_result(result)
            if isinstance(error, psycopg.errors.InvalidSqlStatementName):
                self._prepared.clear()
            raise error
        return result


class StatementRunner(Protocol):
    """Runs statements in one session."""

    def run(self, statement: Statement, *parameters: Parameter) -> PGresult:
        """Executes a statement and returns the result. Raises psycopg's errors."""


class BorrowedConnection:
    """Runs statements in the open transaction of a connection that is not pgbeat's own.

    psycopg prepares them there, unless the connection's `prepare_threshold` is `None`, and forgets
    them when the transaction is rolled back.
    """

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._connection = connection
        self.pgconn = connection.pgconn

    def run(self, statement: Statement, *parameters: Parameter) -> PGresult:
        """Executes a statement and returns the result. Raises psycopg's errors."""
        cursor = psycopg.RawCursor(self._connection)
        values = [None if parameter is None else parameter.decode() for parameter in parameters]
        cursor.execute(statement.sql.encode(), values, prepare=True)
        result = cursor.pgresult
        if result is None:
            raise psycopg.OperationalError("the connection was lost")
        return result
