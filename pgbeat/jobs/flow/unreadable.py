"""Fails jobs that wait and whose rows can't be read: Python has no time such as one of theirs.

Only SQL can write one. It would keep the leader from reading the others beside it.
"""

import logging

from sqlalchemy import Connection, DateTime, and_, bindparam, case, func, not_, text, update

from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.database import connections
from pgbeat.database.tables import jobs
from pgbeat.jobs.flow import lifecycle
from pgbeat.jobs.lanes.model import Room
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.states import endings
from pgbeat.storable import EARLIEST, LATEST

logger = logging.getLogger("celery.beat.pgbeat")

_REASON = "its row has a time that is not of the years 1 to 9999"
_TIMES = {
    name: jobs.c[name].between(EARLIEST, LATEST)
    for name in Job._fields
    if isinstance(jobs.c[name].type, DateTime)
}
_MEND = (
    update(jobs)
    .where(
        jobs.c.namespace == bindparam("own_namespace"),
        # No parameter: the plan is for their partition alone.
        text("state IN ('pending', 'scheduled', 'paused')"),
        jobs.c.dispatched_at.is_(None),
        not_(and_(*_TIMES.values())),
    )
    .values(
        {name: case((not_(fits), func.now()), else_=jobs.c[name]) for name, fits in _TIMES.items()}
    )
    .returning(jobs.c.id)
)


def fail(connection: Connection, publisher: Publisher, namespace: str) -> set[Room]:
    """Ends the jobs of a namespace that can't be read, and returns lanes to dispatch.

    The time becomes that of the transaction, so that lists can show them.
    """
    with connections.transaction(connection):
        ids = list(connection.scalars(_MEND, {"own_namespace": namespace}))
        ended = endings.end(connection, ids, "failed", _REASON, is_final=True)
        rooms = lifecycle.follow(connection, publisher, ended)
    for job in ended:
        logger.error("Job %s failed: %s", job.id, _REASON)
    return rooms
