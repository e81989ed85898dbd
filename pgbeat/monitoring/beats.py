"""Finds the leader and the standbys, and whether due schedules are being decided."""

from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection, text

from pgbeat.config import Settings
from pgbeat.database.locks import advisory_locks
from pgbeat.database.locks.advisory_locks import LockHolder
from pgbeat.monitoring import fences
from pgbeat.monitoring.runbook import LATE, RESTORED, Trouble
from pgbeat.schedules import model as schedules

#: How the names of beats' sessions begin, before host and process id.
_NAMED = "pgbeat beat "


class Beat(NamedTuple):
    """A beat, by its session; `host` and `process` are `None` if its name lacks them."""

    host: str | None
    process: int | None
    session: LockHolder

    @property
    def is_beat(self) -> bool:
        """Returns whether its session has a beat's name."""
        return self.session.application_name.startswith(_NAMED)

    @property
    def label(self) -> str:
        """Returns host and process id, or the session's pid and name."""
        if self.is_beat:
            return self.session.application_name.removeprefix(_NAMED)
        name = self.session.application_name or "without a name"
        return f"session {self.session.pid} ({name})"


class Status(NamedTuple):
    """The beats, and how far behind they are."""

    leader: Beat | None
    standbys: list[Beat]
    backlog: schedules.Backlog
    #: When a schedule was last decided, unless that is long ago.
    last_tick_at: datetime | None
    #: Why schedules may not be launched on time; empty if all is well.
    troubles: list[Trouble]


def status(connection: Connection, settings: Settings) -> Status:
    """Returns the state of a namespace's beats."""
    beats = [_beat(holder) for holder in advisory_locks.holders(connection, settings.leader_key)]
    leader = next((beat for beat in beats if beat.session.leads), None)
    backlog = schedules.backlog(connection, namespace=settings.namespace)
    last_tick_at = connection.scalar(_LAST_TICK, {"namespace": settings.namespace})
    return Status(
        leader,
        [beat for beat in beats if not beat.session.leads],
        backlog,
        last_tick_at,
        [*_troubles(leader, backlog, settings), *_held(connection)],
    )


def leader(connection: Connection, settings: Settings) -> Beat | None:
    """Returns the leading beat, or whatever session holds its lock."""
    holders = advisory_locks.holders(connection, settings.leader_key)
    return next((_beat(holder) for holder in holders if holder.leads), None)


# Of the newest of all namespaces.
_LAST_TICK = text(
    """
    SELECT max(t.decided_at)
      FROM (SELECT schedule_id, decided_at FROM pgbeat.ticks ORDER BY id DESC LIMIT 1000) AS t
           JOIN pgbeat.schedules s ON s.id = t.schedule_id
     WHERE s.namespace = :namespace
    """
)


def patience(settings: Settings) -> timedelta:
    """Returns for how long a schedule may be due while all is well.

    A beat may sleep first, and then evaluate a condition.
    """
    return timedelta(seconds=settings.loop_interval + settings.condition_timeout)


def _troubles(leader: Beat | None, backlog: schedules.Backlog, settings: Settings) -> list[Trouble]:
    troubles = []
    if leader is None:
        troubles.append(
            "no beat leads: nothing is launched; start one by `celery -A APP beat -S "
            "pgbeat.Scheduler`"
        )
    elif not leader.is_beat:
        troubles.append(
            f"lock {settings.leader_key} is held by session {leader.session.pid}, which is no "
            "beat; set pgbeat_lock_key to another"
        )
    usual = patience(settings).total_seconds()
    if backlog.lag > usual:
        many = f"{backlog.due} schedules are due, the oldest"
        due = "1 schedule is due" if backlog.due == 1 else many
        troubles.append(f"{due} for {backlog.lag:.0f} s; at most {usual:g} s are usual")
    return [Trouble(sentence, LATE) for sentence in troubles]


def _held(connection: Connection) -> list[Trouble]:
    held = fences.raised(connection)
    if held is None:
        return []
    return [Trouble(f"{held.summary}; `pgbeat fence release` releases them", RESTORED)]


def _beat(session: LockHolder) -> Beat:
    """Reads the name `pgbeat beat HOST:PROCESS`, which Postgres cuts after 63 characters."""
    host, process = None, ""
    if session.application_name.startswith(_NAMED):
        host, _, process = session.application_name.removeprefix(_NAMED).rpartition(":")
    return Beat(host or None, int(process) if process.isdigit() else None, session)
