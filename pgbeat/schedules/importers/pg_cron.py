"""Reads the tables of the Postgres extension pg_cron."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import func, inspect, select, text
from sqlalchemy.engine import URL

from pgbeat.errors import ConfigError
from pgbeat.schedules.importers import databases, imported, timetables
from pgbeat.schedules.importers.timetables import Unmovable, When

BEAT = "pg_cron"
_SCHEMA = "cron"
_HINT = "--from names another: that of the server's setting cron.database_name"
_SECONDS = re.compile(r"\s*(\d+)\s+seconds?\s*", re.IGNORECASE)


class CronTables(NamedTuple):
    """The tables and settings of pg_cron."""

    #: Rows of `cron.job`.
    jobs: list[Mapping[str, Any]]
    #: When each ran last, by its id.
    last_runs: Mapping[int, Any]
    timezone: str
    #: The role that read them, if it sees only its own.
    only_of: str | None


def read(url: str | URL) -> CronTables:
    """Returns the contents of the database that pg_cron is in. Raises `PgbeatError`."""
    with databases.connected(url) as connection:
        if connection.dialect.name != "postgresql":
            raise ConfigError(f"{databases.place(url)} is no Postgres; pg_cron's is")
        jobs = databases.reflected(connection, _SCHEMA, "job", hint=_HINT)
        last_runs = {}
        if inspect(connection).has_table("job_run_details", _SCHEMA):  # since pg_cron 1.3
            details = databases.reflected(connection, _SCHEMA, "job_run_details").c
            latest = select(details.jobid, func.max(details.start_time)).group_by(details.jobid)
            last_runs = {row[0]: row[1] for row in connection.execute(latest)}
        timezone, only_of = connection.execute(
            text(
                "SELECT current_setting('cron.timezone', true),"
                "       CASE WHEN row_security_active('cron.job') THEN current_user END"
            )
        ).one()
        rows = connection.execute(select(jobs).order_by(jobs.c.jobid)).mappings()
        return CronTables([dict(row) for row in rows], last_runs, timezone or "GMT", only_of)


def inventory(
    where: str, contents: CronTables, *, task: str, timezone: str | None = None
) -> imported.Inventory:
    """Returns the jobs as arrivals. `timezone` overrides the server's setting."""
    result = imported.Inventory(BEAT, where, stop="deactivate these jobs in pg_cron")
    owned = [(str(job["username"]), _name(job)) for job in contents.jobs]
    for job, origin in zip(contents.jobs, imported.origins(owned), strict=True):
        result.take(_arrival, origin, job, contents, task, timezone)
    if contents.only_of is not None:
        result.notes.append(f"{contents.only_of} sees only its own jobs; a superuser sees all")
    return result


def _arrival(
    origin: str, job: Mapping[str, Any], contents: CronTables, task: str, timezone: str | None
) -> imported.Arrival:
    kwargs = {name: str(job[name]) for name in ("database", "username")}
    return imported.Arrival(
        origin=origin,
        what={"task": task, **imported.arguments([job["command"]], kwargs)},
        when=_when(str(job["schedule"]), timezone or contents.timezone),
        last_run=contents.last_runs.get(job["jobid"]),
        disabled_reason=None if job.get("active", True) else imported.disabled_in(BEAT),
    )


def _name(job: Mapping[str, Any]) -> str:
    """Returns a job's name; it may have none."""
    return str(job.get("jobname") or f"job {job['jobid']}")


def _when(schedule: str, timezone: str) -> When:
    if found := _SECONDS.fullmatch(schedule):
        return timetables.of_interval(timedelta(seconds=int(found[1])))
    fields = schedule.split()
    if fields in (["@reboot"], ["@restart"]):
        raise Unmovable(f"it runs when the server starts ({fields[0]}), which no timetable knows")
    if len(fields) == 5 and fields[2] == "$":
        fields[2] = "L"
    return When({"cron": " ".join(fields), "timezone": timezone})
