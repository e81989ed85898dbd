"""Ends jobs whose message was removed from its queue without being delivered.

The transaction that deletes the message (`pgbeat.broker.discards`) writes a row of
`pgbeat.message_ends`, and ends the job if nothing follows from that. The next rescue
(`pgbeat.jobs.rescuing.rescue`) ends the others, and those that another transaction had locked.
"""

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, text

from pgbeat.broker import message_ends
from pgbeat.database import sql
from pgbeat.jobs.messages import answers
from pgbeat.jobs.states import endings
from pgbeat.jobs.states.endings import Ended

_WHY = {
    "purged": "its message was purged{queue}",
    "deleted": "its message was deleted{queue} with the queue",
    "expired": "expired: no worker took its message{queue} in time",
}


def why(how: str, queue: str | None) -> str:
    """Returns the error with which such a job ends."""
    return _WHY[how].format(queue="" if queue is None else f" from queue {queue!r}")


_WAITING = text(sql.load("discarded_messages.sql", "waiting"))
_AMONG = text(sql.load("discarded_messages.sql", "among"))
_OWN = text(sql.load("discarded_messages.sql", "own"))


def unfinished_jobs(connection: Connection, namespace: str) -> list[str]:
    """Returns the ids of unfinished jobs whose message was discarded."""
    return [str(row.job_id) for row in connection.execute(_WAITING, {"namespace": namespace})]


def end_jobs(connection: Connection, job_ids: Collection[str]) -> list[Ended]:
    """Ends those of the jobs whose message was discarded, and returns them for `lifecycle.follow`.

    Skips jobs that another transaction has locked.
    """
    return _end(connection, connection.execute(_AMONG, {"jobs": list(job_ids)}).all())


def end_discarded(connection: Connection) -> None:
    """Ends jobs whose messages the open transaction has discarded, if nothing follows from that."""
    answers.give_here(connection, _end(connection, connection.execute(_OWN).all()))


def _end(connection: Connection, rows: Sequence[tuple[object, str, str | None]]) -> list[Ended]:
    reasons: dict[tuple[str, str | None], list[str]] = {}
    for job_id, how, queue in rows:
        reasons.setdefault((how, queue), []).append(str(job_id))
    ended: list[Ended] = []
    for (how, queue), job_ids in reasons.items():
        ended += endings.end(
            connection, job_ids, "cancelled", why(how, queue), of=("pending", "scheduled")
        )
    message_ends.forget(connection, [str(job.id) for job in ended])
    return ended
