"""Whether a schedule can be launched by an app: launcher, task, arguments and publish options."""

import psycopg
from celery import Celery
from sqlalchemy import Connection

from pgbeat.broker.publishing.publisher import check_options
from pgbeat.database import connections
from pgbeat.errors import ConditionError, InvalidSchedule
from pgbeat.jobs.task_checks import check_arguments, check_task
from pgbeat.jobs.task_exceptions import Skip
from pgbeat.jobs.templates import Template
from pgbeat.schedules.launchers import GenericLauncher, find, holds, read_only
from pgbeat.schedules.model import Schedule


def check(app: Celery, row: Schedule) -> None:
    """Raises `InvalidSchedule` unless the app, its modules imported, can launch the schedule.

    Where a template adds to its arguments, they are not checked.
    """
    launcher = find(row.launcher)
    where = {} if row.queue is None else {"queue": row.queue}
    check_options({**where, **row.options}, app.conf)
    task = row.task or launcher.task
    if task is not None:
        check_task(app, task)
    has_more = bool(row.job_policy and row.job_policy.get("template"))
    plain = launcher is GenericLauncher and not has_more
    if plain and task is not None and row.args is not None:
        check_arguments(app, task, row.args, row.kwargs)


def completed(row: Schedule, template: Template) -> Schedule:
    """The row with what its template adds, as it is launched; it names no template then."""
    return row._replace(
        args=row.args or template.args,
        kwargs=template.kwargs | row.kwargs,
        options=template.options | row.options,
        queue=row.queue or template.queue,
        job_policy={key: value for key, value in row.job_policy.items() if key != "template"},
    )


def check_condition(connection: Connection, condition_sql: str, timeout: float) -> bool | Skip:
    """What a condition says now, asked as beat asks it. `connection` has no open transaction.

    Raises `InvalidSchedule` for one that no data would make run, `ConditionError` for one that
    fails as things are: a table that is not there yet, say, or `timeout` seconds are over.
    """
    try:
        read_only(connection, timeout)
        return holds(connection, condition_sql)
    except ConditionError as error:
        raise InvalidSchedule.of("condition_sql", "malformed", f"{error}; {_EXAMPLE}") from None
    except psycopg.Error as error:
        if connections.is_lost(error):
            raise
        if error.sqlstate in _NEVER:
            raise InvalidSchedule.of(
                "condition_sql", "malformed", f"condition_sql can't run: {error}; {_EXAMPLE}"
            ) from None
        raise ConditionError(str(error)) from None
    finally:
        connection.rollback()


#: SQLSTATEs: a syntax error or several statements, a write, a command that wants no transaction.
_NEVER = {"42601", "25006", "25001", "0A000"}
_EXAMPLE = "write one SELECT, such as 'SELECT count(*) > 0 FROM orders WHERE NOT done'"
