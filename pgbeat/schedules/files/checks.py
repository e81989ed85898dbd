"""Checks of a file's definitions that need the app or the database."""

from collections.abc import Iterable, Iterator
from functools import cache, partial
from typing import Any

from celery import Celery
from sqlalchemy import Connection, text

from pgbeat.broker.publishing.publisher import check_options
from pgbeat.database import connections
from pgbeat.errors import InvalidInput, InvalidSchedule, UnknownLauncher, UnknownTask
from pgbeat.jobs.lanes import concurrency
from pgbeat.jobs.verbs import template_control
from pgbeat.schedules.files import Check, Definition, Mistake
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.registry import CONDITION_EXAMPLE, check


def launchable(app: Celery | None) -> Check:
    """Returns a check of launcher, task, arguments and publish options.

    The app's modules must be imported. Without an app, only publish options are checked.
    """

    def problems(definition: Definition) -> Iterator[tuple[str, str]]:
        if definition.noun:
            yield from _problems_of_noun(app, definition)
            return
        row = _row(definition)
        # After each problem, the row is checked again without the value at fault.
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
                fields = {problem.root for problem in error.problems}
                if fields != {"options"}:
                    yield from ((problem.root, problem.message) for problem in error.problems)
                    return
                field = "options" if row.options else "queue"
                yield from ((field, problem.message) for problem in error.problems)
                row = row._replace(options={}) if row.options else row._replace(queue=None)
            else:
                return

    return problems


def _problems_of_noun(app: Celery | None, definition: Definition) -> Iterator[tuple[str, str]]:
    values = definition.values
    try:
        if definition.noun == "template":
            template_control.check_call(app, values)
        elif definition.noun == "lane":
            policy = values["policy"]
            # Without the app, another policy may be one of its own.
            if policy in concurrency.registered() or None not in (app, policy):
                concurrency.make(policy, values["options"])
    except InvalidInput as error:
        yield from ((problem.root, problem.message) for problem in error.problems)


def _row(definition: Definition) -> Schedule:
    """Returns the future row, as far as a file defines it."""
    values: dict[str, Any] = dict.fromkeys(Schedule._fields)
    known = {name: value for name, value in definition.values.items() if name in values}
    return Schedule(**values | known | {"name": definition.name})


def conditions(connection: Connection, definitions: Iterable[Definition]) -> list[Mistake]:
    """Returns the mistakes of conditions in SQL that could never run.

    They are parsed, each once, and not run. `connection` is in autocommit mode.
    """
    find = cache(partial(_problem, connection))
    mistakes = []
    for definition in definitions:
        condition = definition.values["condition_sql"]
        problem = None if condition is None else find(condition)
        if problem is not None:
            sentence = f"condition_sql can't run: {problem}; {CONDITION_EXAMPLE}"
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
    # Missing tables and permissions may come later.
    if state not in _NEVER:
        return None
    return (result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")


#: SQLSTATEs: a syntax error or several statements, and unsupported features.
_NEVER = {b"42601", b"0A000"}
