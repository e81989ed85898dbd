"""Records which jobs' messages went to a broker that is not this database.

After an app moves from Redis or RabbitMQ to pgbeat's transport, workers of the old broker still run
such jobs for some time. They have no message in the table, but are not lost. Nor are tasks that
became jobs as a worker recorded them (`executions_begin.sql`): their messages don't name a job.
"""

from collections.abc import Collection

from sqlalchemy import Connection, text

_NOTE = text(
    "UPDATE pgbeat.unfinished_jobs SET elsewhere_at = now() WHERE id = ANY (CAST(:ids AS uuid[]))"
)
_SENT = text(
    "SELECT id FROM pgbeat.unfinished_jobs WHERE id = ANY (CAST(:ids AS uuid[])) "
    "AND elsewhere_at >= dispatched_at"
)


def note(connection: Connection, job_ids: Collection[str]) -> None:
    """Records that the messages of these jobs went to another broker."""
    if job_ids:
        connection.execute(_NOTE, {"ids": list(job_ids)})


def sent(connection: Connection, job_ids: Collection[str]) -> set[str]:
    """Returns those of the jobs (ids) whose last message went to another broker."""
    sent_ids = connection.scalars(_SENT, {"ids": list(job_ids)}) if job_ids else ()
    return {str(job_id) for job_id in sent_ids}
