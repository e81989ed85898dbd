"""Turns: what the end of a group's member means for the others.

It is read from the members' states, with the group's row locked, so that two that end in the same
moment are seen to one after the other. Job rows that somebody holds are passed by: who holds them
sees to the group next, or the beat does (`stuck`).
"""

from collections.abc import Collection, Iterable
from typing import Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.jobs.model import COLUMNS, ENDED, UNFINISHED, Ended, Job


class Ending(NamedTuple):
    """Members that wait, and are to be ended because of what became of another."""

    jobs: list[str]
    to: Literal["cancelled", "skipped"]
    reason: str


class Step(NamedTuple):
    """What groups want done: jobs whose turn it is, and members that are to be ended."""

    unblocked: list[Job]
    endings: list[Ending]


_LOCK = text(
    """
    SELECT id, mode, on_failure, cancelled_by, cancelled_at IS NOT NULL FROM pgbeat.groups
     WHERE id = ANY (CAST(:ids AS uuid[])) AND state = 'running' ORDER BY id FOR UPDATE
    """
)
# A statement of its own, after the lock: it sees what those who had the lock before have written.
_LOOK = text(
    f"""
    SELECT (SELECT id FROM pgbeat.jobs
             WHERE group_id = :id AND state = 'failed' AND retried_by IS NULL LIMIT 1) AS failed,
           (SELECT id FROM pgbeat.jobs
             WHERE group_id = :id AND state = 'cancelled' AND retried_by IS NULL
             LIMIT 1) AS cancelled,
           EXISTS (SELECT FROM pgbeat.jobs WHERE group_id = :id AND {UNFINISHED}) AS unfinished,
           EXISTS (SELECT FROM pgbeat.jobs
                    WHERE group_id = :id AND {UNFINISHED} AND NOT blocked_by_group) AS moving
    """  # noqa: S608
)
_WAITING = text(
    """
    SELECT id FROM pgbeat.jobs
     WHERE group_id = :id AND state IN ('pending', 'scheduled', 'paused')
     ORDER BY group_position, id
    """
)
# The first of those that wait; not the one after it, should somebody hold its row.
_NEXT = text(
    f"""
    WITH first AS MATERIALIZED (
        SELECT id FROM pgbeat.jobs
         WHERE group_id = :id AND state IN ('pending', 'scheduled', 'paused') AND blocked_by_group
         ORDER BY group_position, id LIMIT 1),
    mine AS (
        SELECT id FROM pgbeat.jobs
         WHERE id IN (SELECT id FROM first) AND state IN ('pending', 'scheduled', 'paused')
           AND blocked_by_group FOR UPDATE SKIP LOCKED)
    UPDATE pgbeat.jobs j
       SET blocked_by_group = false,
           state = CASE WHEN state = 'scheduled' AND run_at <= now() THEN 'pending' ELSE state END,
           dispatched_at = CASE WHEN lane IS NULL AND state <> 'paused' THEN now() END
      FROM mine WHERE j.id = mine.id
    RETURNING {COLUMNS}
    """  # noqa: S608
)
_FINISH = text(
    "UPDATE pgbeat.groups SET state = :state, finished_at = now() "
    "WHERE id = :id AND state = 'running'"
)


def of(ended: Iterable[Ended]) -> set[UUID]:
    """The groups that have to be looked at after these ends; a job that is tried again counts: its
    group may not want more attempts."""
    return {job.group_id for job in ended if job.group_id is not None and job.state in ENDED}


def advance(connection: Connection, group_ids: Collection[UUID]) -> Step:
    """Advances groups after their members changed, in the transaction that changed them.

    Unblocks the next member of a sequential group (`blocked_by_group` is off, and unless something
    else holds it back, `dispatched_at` is set: the caller must publish it). After a failure, the
    group's policy says which members the caller must end. The last member's end finishes the group.
    """
    step = Step([], [])
    if not group_ids:
        return step
    locked = connection.execute(_LOCK, {"ids": [str(each) for each in group_ids]}).all()
    for group_id, mode, on_failure, cancelled_by, is_cancelled in locked:
        failed, cancelled, unfinished, moving = connection.execute(_LOOK, {"id": group_id}).one()
        # What comes after a cancelled one in a sequence may build on it, as on a failed one.
        broken = failed or (cancelled if mode == "sequential" else None)
        if not unfinished:
            state = "failed" if failed else "cancelled" if cancelled else "completed"
            if is_cancelled and cancelled:
                state = "cancelled"
            connection.execute(_FINISH, {"id": group_id, "state": state})
        elif is_cancelled or (broken and on_failure != "continue"):
            to: Literal["cancelled", "skipped"] = "cancelled"
            if is_cancelled:
                reason = f"its group was cancelled by {cancelled_by}"
            else:
                verb = "failed" if failed else "was cancelled"
                reason = f"{broken} of its group {verb}, and on_failure is {on_failure}"
                to = "skipped" if on_failure == "skip_remaining" else "cancelled"
            waiting = [str(each) for each in connection.scalars(_WAITING, {"id": group_id})]
            if waiting:
                step.endings.append(Ending(waiting, to, reason))
        elif mode == "sequential" and not moving:
            rows = connection.execute(_NEXT, {"id": group_id})
            step.unblocked.extend(Job(*row) for row in rows)
    return step


# Each group is looked at by itself: an EXISTS may be answered by going through all jobs.
_STUCK = text(
    f"""
    SELECT g.id FROM pgbeat.groups g CROSS JOIN LATERAL (
           SELECT (SELECT true FROM pgbeat.jobs
                    WHERE group_id = g.id AND {UNFINISHED} AND NOT blocked_by_group
                    LIMIT 1) AS moves,
                  (SELECT true FROM pgbeat.jobs
                    WHERE group_id = g.id AND state IN ('pending', 'scheduled', 'paused')
                    LIMIT 1) AS waits,
                  g.cancelled_at IS NOT NULL OR g.on_failure <> 'continue' AND (
                      SELECT true FROM pgbeat.jobs
                       WHERE group_id = g.id AND retried_by IS NULL
                         AND (state = 'failed' OR state = 'cancelled' AND g.mode = 'sequential')
                       LIMIT 1) AS ends) AS found
     WHERE g.namespace = :namespace AND g.finished_at IS NULL
       AND (found.moves IS NULL OR found.waits AND found.ends)
     ORDER BY g.created_at, g.id LIMIT :limit
    """  # noqa: S608
)


def stuck(connection: Connection, namespace: str, *, limit: int = 100) -> list[UUID]:
    """Groups in which something is to be done and nobody will tell: `advance` passed a row by that
    somebody held, or members were changed by hand."""
    return list(connection.scalars(_STUCK, {"namespace": namespace, "limit": limit}))
