"""Checks whether an app can launch a schedule: launcher, task, arguments, publish options."""

from contextlib import suppress

import psycopg
from celery import Celery

from pgbeat.broker.publishing.publisher import check_options
from pgbeat.config import Settings, settings_of
from pgbeat.database import connections
from pgbeat.errors import ConditionError, InvalidSchedule, Problem, Problems
from pgbeat.jobs.checks import sql_jobs
from pgbeat.jobs.checks.task_checks import check_arguments, check_task
from pgbeat.jobs.policy.templates import Template
from pgbeat.jobs.running.task_exceptions import Skip
from pgbeat.schedules.launchers import GenericLauncher, condition_engine, find, holds, read_only
from pgbeat.schedules.model import Schedule


def check(app: Celery, row: Schedule) -> None:
    """Raises `InvalidSchedule` unless the app can launch the schedule.

    The app's modules must be imported. Of arguments that a template adds to, only a role for SQL is
    checked.
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
    elif has_more and task == sql_jobs.TASK:
        sql_jobs.check_part(settings_of(app), row.args or (), row.kwargs or {})


def completed(row: Schedule, template: Template) -> Schedule:
    """Returns the row as it is launched: completed by its template, and without it."""
    return row._replace(
        args=row.args or template.args,
        kwargs=template.kwargs | row.kwargs,
        options=template.options | row.options,
        queue=row.queue or template.queue,
        job_policy={key: value for key, value in row.job_policy.items() if key != "template"},
    )


def condition_mistakes(settings: Settings, condition_sql: str | None) -> list[Problem]:
    """Returns the mistakes of a condition that can never run; none of one that fails for now."""
    problems = Problems()
    if condition_sql is not None and condition_sql.strip():
        with suppress(ConditionError), problems.within():
            check_condition(settings, condition_sql)
    return problems


def check_condition(settings: Settings, condition_sql: str) -> bool | Skip:
    """Evaluates a condition as beat does.

    Raises `InvalidSchedule` for a condition that can never run, and `ConditionError` for one that
    fails for now: because a table is missing, say, or since it takes too long.
    """
    try:
        with condition_engine(settings).connect() as connection:
            read_only(connection, settings.condition_timeout)
            return holds(connection, condition_sql)
    except ConditionError as error:
        problem = str(error)
    except psycopg.Error as error:
        if error.sqlstate not in _NEVER:
            if connections.is_lost(error):
                raise
            raise ConditionError(str(error)) from None
        problem = f"condition_sql can't run: {error}"
    message = f"{problem}; {CONDITION_EXAMPLE}"
    raise InvalidSchedule.of("condition_sql", "malformed", message)


#: SQLSTATEs: a syntax error or several statements, a write, a command that allows no transaction.
_NEVER = {"42601", "25006", "25001", "0A000"}
CONDITION_EXAMPLE = "write one SELECT, such as 'SELECT count(*) > 0 FROM orders WHERE NOT done'"
