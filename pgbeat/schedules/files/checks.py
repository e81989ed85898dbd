"""What of a file's definitions only the app and the database can tell."""

from collections.abc import Iterable, Iterator
from typing import Any

from celery import Celery
from sqlalchemy import Connection, text

from pgbeat.broker.publishing.publisher import check_options
from pgbeat.database import connections
from pgbeat.errors import InvalidSchedule, UnknownLauncher, UnknownTask
from pgbeat.schedules.files import Check, Definition, Mistake
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.registry import CONDITION_EXAMPLE, check


def launchable(app: Celery | None) -> Check:
    """Checks launcher, task, arguments and publish options; the last alone without an app.

    The app's modules are imported.
    """

    def found(definition: Definition) -> Iterator[tuple[str, str]]:
        row = _row(definition)
        # Each is asked about again without what was wrong, as long as that says anything.
        while True:
            try:
                check_options(row.options) if app is None else check(app, row)
            except UnknownLauncher as error:
                yield "launcher", str(error)
                row = row._replace(launcher="GenericLauncher")
            except UnknownTask as error:
                yield "task", str(error)
                row = row._replace(task=None)
            except InvalidSchedule as error:
                field = error.problems[0].root
                yield field, str(error)
                if field != "options" or not row.options:
                    return
                row = row._replace(options={})
            else:
                return

    return found


def _row(definition: Definition) -> Schedule:
    """The row that is to be, as far as a file says it."""
    values: dict[str, Any] = dict.fromkeys(Schedule._fields)
    known = {name: value for name, value in definition.values.items() if name in values}
    return Schedule(**values | known | {"name": definition.name})


def conditions(connection: Connection, definitions: Iterable[Definition]) -> list[Mistake]:
    """Conditions in SQL that could never run. They are parsed, each once, and not run.

    `connection` is in autocommit mode.
    """
    problems: dict[str, str | None] = {}
    mistakes = []
    for definition in definitions:
        condition = definition.values["condition_sql"]
        if condition is None:
            continue
        if condition not in problems:
            problems[condition] = _problem(connection, condition)
        if problems[condition]:
            sentence = f"condition_sql can't run: {problems[condition]}; {CONDITION_EXAMPLE}"
            mistakes.append(definition.mistake("condition_sql", sentence))
    return mistakes


def _problem(connection: Connection, condition: str) -> str | None:
    from psycopg.pq import DiagnosticField, ExecStatus

    server = connections.driver(connection).pgconn
    connection.execute(text("BEGIN"))  # a pooler may give the next request another session
    try:
        result = server.prepare(b"", condition.encode())
        described = server.describe_prepared(b"")
    finally:
        connection.execute(text("ROLLBACK"))
    if result.status == ExecStatus.COMMAND_OK:
        if described.nparams:
            return "it has parameters, which nothing gives a value"
        return None if described.nfields else "it gives no rows"
    state = result.error_field(DiagnosticField.SQLSTATE)
    # What is not there yet, or not allowed, may be so tomorrow.
    if state not in _NEVER:
        return None
    return (result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")


#: SQLSTATEs: a syntax error or several statements, what is not supported.
_NEVER = {b"42601", b"0A000"}
