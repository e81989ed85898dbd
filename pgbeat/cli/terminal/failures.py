"""Turns errors into sentences and exit statuses."""

from collections.abc import Iterable
from typing import Any

import click
import psycopg
from sqlalchemy.exc import DBAPIError

from pgbeat.cli.terminal.printing import harmless
from pgbeat.config import place
from pgbeat.database import connections
from pgbeat.database.server_errors import code_of, is_read_only
from pgbeat.errors import (
    Busy,
    ConfigError,
    Forbidden,
    InvalidCalendar,
    InvalidInput,
    PgbeatError,
    Problem,
    SchemaError,
)

#: Exit statuses: the command failed; its input is invalid; a condition said no.
FAILED, REFUSED, SKIPPED = 1, 2, 3


class BadInput(click.ClickException):
    """The command can't be carried out as it was given."""

    exit_code = REFUSED


def refusal(error: Exception, target: Any) -> click.ClickException | None:
    """Returns the error to show; `None` for a bug, which is shown as a traceback."""
    shown = _refusal(error, target)
    return None if shown is None else type(shown)(harmless(shown.message))


def _refusal(error: Exception, target: Any) -> click.ClickException | None:
    if isinstance(error, InvalidInput):
        return BadInput(_listed(error))
    if isinstance(error, Forbidden) and error.is_for_admins:
        return click.ClickException(f"{error} (--admin)")
    if isinstance(error, UnicodeError):
        what = "an argument" if isinstance(error, UnicodeEncodeError) else "the file"
        return BadInput(f"{what} is not valid UTF-8")
    if isinstance(error, PgbeatError | OSError):
        return click.ClickException(str(error))
    if isinstance(
        getattr(error, "orig", None), psycopg.ProgrammingError
    ) and not connections.sqlstate(error):
        return BadInput(f"the database URL is not right: {connections.first_line(error)}")
    if isinstance(error, DBAPIError | psycopg.Error):
        return click.ClickException(_of_database(error, target))
    return None


def _listed(error: InvalidInput) -> str:
    """Returns the problems, each on a line if there are several."""
    if len(error.problems) == 1 or isinstance(error, ConfigError | InvalidCalendar):
        return str(error)  # has its own lines
    heading = error.subject or "several mistakes"
    return "\n  ".join([f"{heading}:", *(problem.message for problem in error.problems)])


def as_json(error: Exception, sentence: click.ClickException) -> dict[str, Any]:
    """Returns an error as `--json` prints it: its code, its message, and each problem."""
    is_refused = sentence.exit_code == REFUSED
    code = InvalidInput.code if is_refused else code_of(error) or "error"
    message = sentence.format_message()
    problems: Iterable[Problem] = [Problem("", code, message)]
    if isinstance(error, click.BadParameter):
        kind = "required" if isinstance(error, click.MissingParameter) else "malformed"
        name = error.param.name if error.param else str(error.param_hint or "").strip("'-")
        problems = [Problem((name or "").replace("-", "_"), kind, message)]
    elif isinstance(error, PgbeatError):
        code, problems = error.code, error.problems
    listed = [problem._asdict() for problem in problems]
    return {"error": {"code": code, "message": message, "problems": listed}}


def _of_database(error: DBAPIError | psycopg.Error, target: Any) -> str:
    code = code_of(error)
    if is_read_only(error):
        return (
            f"database {place(target.settings.url)} is read-only: it is a standby, or "
            "default_transaction_read_only is on; give the primary's URL"
        )
    if connections.is_lost(error):
        return unreachable(error, target)
    if code == SchemaError.code:
        problem = _schema_problem(target)
        if problem is not None:
            return problem
    if code == Busy.code:
        return "another session is changing that; try again"
    return f"the database refused: {connections.first_line(error)}" + (
        "; `pgbeat doctor` lists the missing permissions" if code == Forbidden.code else ""
    )


def unreachable(error: BaseException, target: Any) -> str:
    """Returns a sentence that says which database can't be reached, and why."""
    reason = connections.first_line(error)
    return f"can't reach database {place(target.settings.url)}: {reason}"


def _schema_problem(target: Any) -> str | None:
    """Returns the schema's problem by `migrate.check`; `None` without one."""
    from pgbeat.database.migrations import migrate

    try:
        with target.engine.connect() as connection:
            migrate.check(connection, reads_schedules=True)
    except PgbeatError as error:
        return str(error)
    except DBAPIError:
        pass
    return None
