"""Advances groups when one of their members has ended.

The states of the members say what must be done. The group's row is locked while they are read, so
that members which end at the same time are handled one after the other. Members that another
transaction has locked are skipped: that transaction advances the group next, or else beat does
(`stuck`).
"""

from collections.abc import Collection, Iterable
from typing import Literal
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.jobs.rows.model import COLUMNS, ENDED, Job, lock
from pgbeat.jobs.states import next_steps
from pgbeat.jobs.states.endings import Ended
from pgbeat.jobs.states.next_steps import Ending, NextSteps

_LOCK = text(
    """
    SELECT id, mode, on_failure, cancelled_by, cancelled_at IS NOT NULL, created_at
      FROM pgbeat.groups
     WHERE id = ANY (CAST(:ids AS uuid[])) AND state = 'running' ORDER BY id FOR UPDATE
    """
)
_MEMBERS = text(sql.load("progress.sql", "members"))
_WAITING = text(
    """
    SELECT id FROM pgbeat.unfinished_jobs
     WHERE group_id = :id AND state IN ('pending', 'scheduled', 'paused')
     ORDER BY group_position, id
    """
)
_UNBLOCK = text(
    sql.load("progress.sql", "unblock", unblocked=next_steps.UNBLOCKED, columns=COLUMNS)
)
_FINISH = text(
    "UPDATE pgbeat.groups SET state = :state, finished_at = now() "
    "WHERE id = :id AND state = 'running' RETURNING callback_id, callback_outcome"
)
_CALL_BACK = text(
    sql.load("progress.sql", "call_back", unblocked=next_steps.UNBLOCKED, columns=COLUMNS)
)
#: The ends of a group after which its callback runs.
_RUNS = {"completed": ("completed",), "failed": ("failed",), "finished": ("completed", "failed")}


def groups_of(ended: Iterable[Ended]) -> set[UUID]:
    """Returns the groups to advance after these jobs ended.

    Includes groups of jobs that will be retried: the retry may have to be cancelled.
    """
    return {job.group_id for job in ended if job.group_id is not None and job.state in ENDED}


def advance(connection: Connection, group_ids: Collection[UUID]) -> NextSteps:
    """Advances groups after their members changed, in the transaction that changed them.

    Unblocks the next member of a sequential group. If that is dispatched now, the caller must
    publish it. After a failure, the group's policy says which members the caller must end. The end
    of the last member finishes the group, and unblocks or skips its callback.
    """
    steps = NextSteps([], [])
    if not group_ids:
        return steps
    locked = connection.execute(_LOCK, {"ids": [str(group_id) for group_id in group_ids]}).all()
    for group_id, mode, on_failure, cancelled_by, is_cancelled, since in locked:
        which = {"id": group_id}
        members = connection.execute(_MEMBERS, {**which, "since": since})
        failed, cancelled, unfinished, moving = members.one()
        # In a sequence, a member may build on the one before it: a cancelled one breaks it too.
        broken = failed or (cancelled if mode == "sequential" else None)
        if not unfinished:
            state = "failed" if failed else "cancelled" if cancelled else "completed"
            if is_cancelled and cancelled:
                state = "cancelled"
            for callback_id, outcome in connection.execute(_FINISH, {**which, "state": state}):
                if callback_id is not None:
                    _call_back(connection, steps, callback_id, group_id, state, _RUNS[outcome])
        elif is_cancelled or (broken and on_failure != "continue"):
            to: Literal["cancelled", "skipped"] = "cancelled"
            if is_cancelled:
                reason = f"its group was cancelled by {cancelled_by}"
            else:
                verb = "failed" if failed else "was cancelled"
                reason = f"job {broken} of its group {verb}, and on_failure is {on_failure}"
                to = "skipped" if on_failure == "skip_remaining" else "cancelled"
            if waiting := [str(job_id) for job_id in connection.scalars(_WAITING, which)]:
                steps.endings.append(Ending(waiting, to, reason))
        elif mode == "sequential" and not moving:
            steps.unblocked.extend(Job(*row) for row in connection.execute(_UNBLOCK, which))
    return steps


def _call_back(
    connection: Connection,
    steps: NextSteps,
    callback_id: UUID,
    group_id: UUID,
    state: str,
    runs: Collection[str],
) -> None:
    """Unblocks the callback of a group that has ended, or skips it."""
    lock(connection, [callback_id])
    if state in runs:
        rows = connection.execute(_CALL_BACK, {"id": callback_id})
        steps.unblocked.extend(Job(*row) for row in rows)
    else:
        verb = "was cancelled" if state == "cancelled" else state
        reason = f"group {group_id}, whose callback it is, {verb}"
        steps.endings.append(Ending([str(callback_id)], "skipped", reason))


_STUCK = text(sql.load("progress.sql", "stuck"))


def stuck(connection: Connection, namespace: str, *, limit: int = 100) -> list[UUID]:
    """Returns groups that must advance, although no member will end for it.

    Either `advance` skipped a locked member, or members were changed by hand.
    """
    return list(connection.scalars(_STUCK, {"namespace": namespace, "limit": limit}))
