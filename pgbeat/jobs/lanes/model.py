"""Lanes: named limits on what runs at once, each with an ordered waiting line in front of it."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from pgbeat.database.tables import lanes
from pgbeat.errors import InvalidJob, InvalidTimetable, NotFound, Problems
from pgbeat.jobs.lanes import concurrency
from pgbeat.names import name_problem
from pgbeat.suggest import did_you_mean
from pgbeat.timetables import parse_duration, span


class Lane(NamedTuple):
    """A row of `pgbeat.lanes`."""

    namespace: str
    name: str
    #: Jobs that have a slot at once; `None` for no limit.
    max_running: int | None
    #: Name of a registered `ConcurrencyPolicy`, and its options.
    policy: str | None
    options: dict[str, Any]
    #: Jobs handed out in a period, of each `rate_key` or of the lane.
    rate_limit: int | None
    rate_period: timedelta | None
    rate_key: str | None
    paused_at: datetime | None
    created_at: datetime
    updated_at: datetime

    @property
    def rate(self) -> str | None:
        """Its rate for people: `10/minute of each task`."""
        if self.rate_limit is None or self.rate_period is None:
            return None
        period = _PERIODS.get(self.rate_period) or span(self.rate_period, units=4)
        each = "" if self.rate_key is None else f" of each {self.rate_key}"
        return f"{self.rate_limit}/{period}{each}"

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of it."""
        return "lane", self.name, {name: getattr(self, name) for name in _AUDITED}


_PERIODS = {
    timedelta(seconds=1): "second",
    timedelta(minutes=1): "minute",
    timedelta(hours=1): "hour",
    timedelta(days=1): "day",
}
_AUDITED = ("max_running", "rate", "policy", "options", "paused_at")
_COLUMNS = [lanes.c[name] for name in Lane._fields]


def load(connection: Connection, names: Iterable[str], *, namespace: str) -> dict[str, Lane]:
    """The lanes of these names that there are."""
    wanted = list(names)
    if not wanted:
        return {}
    query = select(*_COLUMNS).where(lanes.c.namespace == namespace, lanes.c.name.in_(wanted))
    return {row.name: Lane(*row) for row in connection.execute(query)}


def _is(namespace: str, name: str) -> ColumnElement[bool]:
    return (lanes.c.namespace == namespace) & (lanes.c.name == name)


def lock(connection: Connection, namespace: str, name: str, *, wait: bool = True) -> Lane | None:
    """The lane, for nobody else to hand out its slots while this transaction is open; `None` where
    it was removed. Without `wait`, raises the error of a lock timeout where another transaction has
    locked it."""
    query = select(*_COLUMNS).where(_is(namespace, name))
    query = query.with_for_update(key_share=True, nowait=not wait)
    row = connection.execute(query).one_or_none()
    return None if row is None else Lane(*row)


def get(connection: Connection, namespace: str, name: str) -> Lane:
    """Returns the lane with that name. Raises `NotFound`, with the most similar name."""
    found = load(connection, [name], namespace=namespace)
    if name not in found:
        known = connection.scalars(select(lanes.c.name).where(lanes.c.namespace == namespace))
        raise NotFound(unknown(name, known), field="lane")
    return found[name]


def unknown(name: str, known: Iterable[str] = ()) -> str:
    """Returns the error message for a lane that doesn't exist."""
    hint = did_you_mean(name, known) or f"`pgbeat lanes set {name} --limit 1` makes it"
    return f"there is no lane {name!r}; {hint}"


class LaneUsage(NamedTuple):
    """A lane, and how full it is."""

    lane: Lane
    #: Jobs and direct executions that have a slot.
    running: int
    #: Those that wait for one.
    waiting: int
    #: When the one came that has waited for the longest time.
    waiting_since: datetime | None


_LISTING = text(
    f"""
    SELECT {", ".join(f"l.{name}" for name in Lane._fields)},
           s.jobs + d.running, w.jobs + d.waiting, least(w.oldest, d.oldest)
      FROM pgbeat.lanes l
           CROSS JOIN LATERAL (
               SELECT count(*) AS jobs FROM pgbeat.jobs j
                WHERE j.namespace = l.namespace AND j.lane = l.name
                  AND j.dispatched_at IS NOT NULL
                  AND j.state IN ('pending', 'scheduled', 'running')) AS s
           CROSS JOIN LATERAL (
               SELECT count(*) AS jobs, min(created_at) AS oldest FROM pgbeat.jobs j
                WHERE j.namespace = l.namespace AND j.lane = l.name AND j.dispatched_at IS NULL
                  AND j.state = 'pending' AND NOT j.blocked_by_group) AS w
           CROSS JOIN LATERAL (
               SELECT count(*) FILTER (WHERE started_at IS NOT NULL) AS running,
                      count(*) FILTER (WHERE started_at IS NULL) AS waiting,
                      min(created_at) FILTER (WHERE started_at IS NULL) AS oldest
                 FROM pgbeat.reservations r
                WHERE r.namespace = l.namespace AND r.lane = l.name) AS d
     WHERE l.namespace = :namespace ORDER BY l.name
    """  # noqa: S608
)


def listing(connection: Connection, namespace: str) -> list[LaneUsage]:
    """All lanes, by name."""
    rows = connection.execute(_LISTING, {"namespace": namespace})
    own = len(Lane._fields)
    return [LaneUsage(Lane(*row[:own]), *row[own:]) for row in rows]


# -- changed

#: What `save` takes.
CHANGES = ("max_running", "rate_limit", "rate_period", "rate_key", "policy", "options")
_RATE = re.compile(r"\s*(\d+)\s*(?:/|\bper\b|\ba\b|\ban\b)\s*(.+)")


def parse_rate(written: str) -> tuple[int, timedelta]:
    """Jobs a period, as people write it: `10/minute`, `3 per second`, `100/15 minutes`.

    Raises `InvalidJob`.
    """
    found = _RATE.fullmatch(written)
    try:
        if found is None:
            raise ValueError
        length = found[2] if re.match(r"[\d.]", found[2]) else f"1 {found[2]}"
        count, period = int(found[1]), parse_duration(length)
    except (ValueError, InvalidTimetable):
        raise InvalidJob.of(
            "rate",
            "malformed",
            f"{written!r} is no rate; write for example '10/minute' or '100/15 minutes'",
        ) from None
    if not 1 <= count <= 1_000_000 or not timedelta(0) < period <= timedelta(days=366):
        raise InvalidJob.of(
            "rate",
            "out_of_range",
            f"{written!r} is out of range; it is 1 to 1000000 jobs in up to 366 days",
        )
    return count, period


def save(
    connection: Connection, namespace: str, name: str, changes: Mapping[str, Any]
) -> tuple[Lane, bool]:
    """Makes a lane, or changes what is given of `CHANGES`; the lane, and whether it is new.

    The caller must dispatch the lane afterwards. Raises `InvalidJob`, which lists every mistake.
    """
    problem = name_problem(name)
    if problem:
        raise InvalidJob.of("name", "malformed", problem, subject=f"lane {name!r}")
    made = insert(lanes).values(namespace=namespace, name=name).on_conflict_do_nothing()
    is_new = connection.execute(made.returning(lanes.c.name)).one_or_none() is not None
    before = connection.execute(select(*_COLUMNS).where(_is(namespace, name)).with_for_update())
    lane = Lane(*before.one())._replace(**changes)
    problems = _problems(lane)
    if lane.policy is not None and {"policy", "options"} & set(changes):
        with problems.within():
            concurrency.make(lane.policy, lane.options)
    problems.raise_if_any(InvalidJob, subject=f"lane {name!r}")
    if changes:
        changed = update(lanes).where(_is(namespace, name)).values(**changes, updated_at=func.now())
        lane = Lane(*connection.execute(changed.returning(*_COLUMNS)).one())
    announce(connection, namespace, name)
    return lane, is_new


def _problems(lane: Lane) -> Problems:
    found = Problems()
    if lane.max_running is not None and not 0 <= lane.max_running <= 1_000_000:
        said = f"a limit of {lane.max_running} is out of range; it is 0 to 1000000"
        found.add("max_running", "out_of_range", said)
    if lane.rate_key is not None:
        if lane.rate_limit is None:
            found.add("rate_key", "conflict", "it has a rate's key, and no rate")
        if lane.rate_key not in _RATE_KEYS and not re.fullmatch(r"kwargs\..+", lane.rate_key):
            hint = did_you_mean(lane.rate_key, _RATE_KEYS)
            hint = hint or f"there are {', '.join(_RATE_KEYS)} and kwargs.NAME"
            said = f"a rate can't be counted by {lane.rate_key!r}; {hint}"
            found.add("rate_key", "unknown", said)
    if lane.policy is None and lane.options:
        found.add("options", "conflict", "it has a policy's options, and no policy")
    return found


_RATE_KEYS = ("task", "tag", "created_by")


def pause(connection: Connection, namespace: str, name: str) -> bool:
    """Has nothing more handed out; what has a slot goes on. False if it is paused already. Raises
    `NotFound`."""
    changed = update(lanes).where(_is(namespace, name), lanes.c.paused_at.is_(None))
    if connection.execute(changed.values(paused_at=func.now())).rowcount:
        return True
    get(connection, namespace, name)
    return False


def resume(connection: Connection, namespace: str, name: str) -> bool:
    """Resumes it; the caller must dispatch the lane afterwards. False if it isn't paused. Raises
    `NotFound`."""
    changed = update(lanes).where(_is(namespace, name), lanes.c.paused_at.is_not(None))
    if connection.execute(changed.values(paused_at=None)).rowcount:
        announce(connection, namespace, name)
        return True
    get(connection, namespace, name)
    return False


# Those that are to come into the line count too.
_IN_THE_WAY = text(
    """
    SELECT (SELECT count(*) FROM pgbeat.jobs
             WHERE namespace = :namespace AND lane = :lane AND dispatched_at IS NULL
               AND state IN ('pending', 'scheduled', 'paused')),
           (SELECT count(*) FROM pgbeat.reservations
             WHERE namespace = :namespace AND lane = :lane),
           ARRAY(SELECT name FROM pgbeat.schedules
                  WHERE namespace = :namespace AND job_policy ->> 'lane' = :lane ORDER BY name),
           ARRAY(SELECT name FROM pgbeat.templates
                  WHERE namespace = :namespace AND job_policy ->> 'lane' = :lane ORDER BY name)
    """
)


def remove(connection: Connection, namespace: str, name: str, *, force: bool = False) -> None:
    """Deletes a lane in which nothing waits, and that no schedule or template names.

    With `force`, any; what waits in it is then dispatched without a limit, once the lane is
    dispatched. Raises `NotFound`, or `InvalidJob` which says what is in the way.
    """
    get(connection, namespace, name)
    values = {"namespace": namespace, "lane": name}
    waiting, direct, schedules, templates = connection.execute(_IN_THE_WAY, values).one()
    reasons = [
        f"{count} {noun}{'' if count == 1 else 's'} {verb}"
        for count, noun, verb in ((waiting, "job", "to come"), (direct, "direct execution", ""))
        if count
    ]
    reasons += [f"schedule {each!r}" for each in schedules[:5]]
    reasons += [f"template {each!r}" for each in templates[:5]]
    if reasons and not force:
        raise InvalidJob.of(
            "", "in_use", f"lane {name!r} is in use: {', '.join(map(str.strip, reasons))}"
        )
    connection.execute(lanes.delete().where(_is(namespace, name)))
    announce(connection, namespace, name)


# -- looked after

# Each lane's line is looked at by itself, and in its order: an EXISTS, or just any row, may be
# answered by going through the whole table.
_NEEDS_LOOK = text(
    """
    SELECT coalesce((
               SELECT true FROM pgbeat.jobs j
                WHERE j.namespace = :namespace AND j.lane = :lane
                  AND j.dispatched_at IS NULL AND j.state = 'pending' AND NOT j.blocked_by_group
                ORDER BY j.priority DESC, j.position LIMIT 1), false)
        OR EXISTS (SELECT FROM pgbeat.reservations WHERE namespace = :namespace AND lane = :lane)
    """
)


def needs_look(connection: Connection, namespace: str, name: str) -> bool:
    """Whether anybody waits in the lane."""
    values = {"namespace": namespace, "lane": name}
    return bool(connection.execute(_NEEDS_LOOK, values).scalar_one())


_WANTED = text(
    """
    SELECT name FROM pgbeat.lanes l
     WHERE namespace = :namespace
       AND (paused_at IS NULL AND coalesce((
                SELECT true FROM pgbeat.jobs j
                 WHERE j.namespace = l.namespace AND j.lane = l.name
                   AND j.dispatched_at IS NULL AND j.state = 'pending'
                   AND NOT j.blocked_by_group
                 ORDER BY j.priority DESC, j.position LIMIT 1), false)
            OR EXISTS (SELECT FROM pgbeat.reservations r
                        WHERE r.namespace = l.namespace AND r.lane = l.name))
     ORDER BY name
    """
)


def wanted(connection: Connection, namespace: str) -> list[str]:
    """Names of the lanes in which somebody waits, or has reserved a slot: to dispatch now and
    then, for whoever should have done it may have died."""
    return list(connection.scalars(_WANTED, {"namespace": namespace}))


_ANNOUNCE = text("SELECT pgbeat.announce_lane(:namespace, :lane)")


def announce(connection: Connection, namespace: str, name: str) -> None:
    """Has beat look at the lane, and those who wait for its slots, once this is committed."""
    connection.execute(_ANNOUNCE, {"namespace": namespace, "lane": name})
