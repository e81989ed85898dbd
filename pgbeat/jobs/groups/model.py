"""Groups: jobs that were given together, all at once or one after the other.

A group is a row; its members are jobs with its id and a position. How it goes on from one to the
next is `pgbeat.jobs.groups.progress`'.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, func, insert, select, text, tuple_

from pgbeat.database.tables import groups
from pgbeat.errors import InvalidJob, NotFound
from pgbeat.jobs.model import COLUMNS, ENDED, UNFINISHED, Job
from pgbeat.storable import is_storable

Mode = Literal["parallel", "sequential"]
OnFailure = Literal["stop", "continue", "skip_remaining"]
MODES: tuple[Mode, ...] = ("parallel", "sequential")
ON_FAILURE: tuple[OnFailure, ...] = ("stop", "continue", "skip_remaining")


class Group(NamedTuple):
    """A row of `pgbeat.groups`."""

    id: UUID
    namespace: str
    name: str | None
    mode: Mode
    #: What becomes of the rest once a member has failed for good.
    on_failure: OnFailure
    #: `running` until the last member has ended; then `completed`, `failed` or `cancelled`.
    state: str
    job_source: str
    created_by: str
    is_system_job: bool
    created_at: datetime
    finished_at: datetime | None
    #: Who asked for its end, and when.
    cancelled_by: str | None
    cancelled_at: datetime | None

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of it."""
        return "group", str(self.id), {name: getattr(self, name) for name in _AUDITED}


_AUDITED = ("name", "mode", "on_failure", "cancelled_by")
_COLUMNS = [groups.c[name] for name in Group._fields]


def check(mode: str, on_failure: str, name: str | None) -> None:
    """Raises `InvalidJob` for a mode or failure policy that isn't there, or a name that is none."""
    if mode not in MODES:
        raise InvalidJob.of(
            "mode", "unknown", f"mode {mode!r} is not one of {', '.join(map(repr, MODES))}"
        )
    if on_failure not in ON_FAILURE:
        raise InvalidJob.of(
            "on_failure",
            "unknown",
            f"on_failure {on_failure!r} is not one of {', '.join(ON_FAILURE)}",
        )
    if name is not None and not (
        isinstance(name, str) and 0 < len(name) <= 200 and is_storable(name)
    ):
        raise InvalidJob.of(
            "name", "malformed", f"{name!r} is no name of a group: 1 to 200 characters, without NUL"
        )


def create(
    connection: Connection,
    *,
    group_id: str,
    namespace: str,
    name: str | None,
    mode: Mode,
    on_failure: OnFailure,
    job_source: str,
    created_by: str,
    is_system_job: bool = False,
) -> None:
    """Writes a group's row; its members are `pgbeat.jobs.create`'s. Raises `InvalidJob`."""
    check(mode, on_failure, name)
    connection.execute(
        insert(groups).values(
            id=group_id,
            namespace=namespace,
            name=name,
            mode=mode,
            on_failure=on_failure,
            job_source=job_source,
            created_by=created_by,
            is_system_job=is_system_job,
        )
    )


def get(connection: Connection, group_id: str | UUID, *, namespace: str | None = None) -> Group:
    """A group. Raises `NotFound`, for an id that is none too."""
    try:
        wanted = UUID(str(group_id))
    except ValueError:
        raise NotFound(f"{group_id!r} is no group's id; ids are UUIDs") from None
    query = select(*_COLUMNS).where(groups.c.id == wanted)
    if namespace is not None:
        query = query.where(groups.c.namespace == namespace)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound(f"there is no group {wanted}")
    return Group(*row)


_BEGINNING = text(
    f"""
    SELECT {", ".join(Group._fields)} FROM pgbeat.groups
     WHERE namespace = :namespace AND id BETWEEN CAST(:lowest AS uuid) AND CAST(:highest AS uuid)
     ORDER BY id LIMIT 6
    """  # noqa: S608
)


def find(connection: Connection, beginning: str, *, namespace: str) -> Group:
    """The group of an id, or of the beginning of one: 4 characters or more. Raises `NotFound`."""
    digits = beginning.replace("-", "").lower()
    if not 4 <= len(digits) <= 32 or not set(digits) <= set("0123456789abcdef"):
        raise NotFound(
            f"{beginning!r} is no group's id, nor the beginning of one (4 characters or more)"
        )
    ends = {"lowest": digits.ljust(32, "0"), "highest": digits.ljust(32, "f")}
    rows = connection.execute(_BEGINNING, {"namespace": namespace, **ends}).all()
    if not rows:
        raise NotFound(f"there is no group {beginning}" + ("" if len(digits) == 32 else "…"))
    if len(rows) > 1:
        some = ", ".join(str(row.id) for row in rows[:5])
        raise NotFound(f"{beginning!r} begins the ids of several groups: {some}; write more of it")
    return Group(*rows[0])


def listing(
    connection: Connection,
    namespace: str,
    *,
    state: str | None = None,
    created_by: str | None = None,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 50,
) -> list[Group]:
    """Groups, newest first. For the next page, `before` is (`created_at`, `id`) of the last one."""
    query = select(*_COLUMNS).where(groups.c.namespace == namespace)
    if state is not None:
        query = query.where(groups.c.state == state)
    if state == "running":
        query = query.where(groups.c.finished_at.is_(None))
    if created_by is not None:
        query = query.where(groups.c.created_by == created_by)
    if before is not None:
        query = query.where(tuple_(groups.c.created_at, groups.c.id) < tuple_(*before))
    query = query.order_by(groups.c.created_at.desc(), groups.c.id.desc()).limit(limit)
    return [Group(*row) for row in connection.execute(query)]


def count_of_others(
    connection: Connection, namespace: str, name: str, *, state: str | None = None, limit: int
) -> int:
    """Returns how many groups somebody other than `name` made, counted up to `limit`."""
    query = select(groups.c.id).where(groups.c.namespace == namespace, groups.c.created_by != name)
    if state is not None:
        query = query.where(groups.c.state == state)
    return connection.scalar(select(func.count()).select_from(query.limit(limit).subquery())) or 0


class Progress(NamedTuple):
    """How far a group is. A member that was tried again counts once, as its last attempt stands."""

    total: int
    #: Members that have ended, however.
    done: int
    counts: dict[str, int]

    @property
    def percent(self) -> float:
        """0 to 100."""
        return 100.0 * self.done / self.total if self.total else 100.0


# What was tried again by hand after the group's end was so outside of it.
_PROGRESS = text(
    """
    SELECT group_id, state, count(*) FROM pgbeat.jobs j
     WHERE group_id = ANY (CAST(:groups AS uuid[]))
       AND (retried_by IS NULL OR (SELECT a.group_id FROM pgbeat.jobs a WHERE a.id = j.retried_by)
            IS DISTINCT FROM group_id)
     GROUP BY group_id, state
    """
)


def progress(connection: Connection, group_ids: Iterable[UUID]) -> dict[UUID, Progress]:
    """How far groups are."""
    wanted = list(group_ids)
    counts: dict[UUID, dict[str, int]] = {group_id: {} for group_id in wanted}
    rows = connection.execute(_PROGRESS, {"groups": [str(each) for each in wanted]})
    for group_id, state, count in rows:
        counts[group_id][state] = count
    return {
        group_id: Progress(
            sum(found.values()), sum(n for state, n in found.items() if state in ENDED), found
        )
        for group_id, found in counts.items()
    }


_MEMBERS = text(
    f"""
    SELECT {COLUMNS} FROM pgbeat.jobs j WHERE group_id = :group_id
     ORDER BY group_position, attempt, created_at, id LIMIT :limit
    """  # noqa: S608
)


def members(connection: Connection, group_id: str | UUID, *, limit: int | None = None) -> list[Job]:
    """A group's jobs by their positions, each followed by those that tried again."""
    rows = connection.execute(_MEMBERS, {"group_id": str(group_id), "limit": limit})
    return [Job(*row) for row in rows]


_UNFINISHED = text(
    f"""
    SELECT id FROM pgbeat.jobs
     WHERE group_id = :id AND {UNFINISHED} AND (:with_asked OR cancel_requested_at IS NULL)
     ORDER BY group_position, id
    """  # noqa: S608
)


def unfinished(
    connection: Connection, group_id: str | UUID, *, with_asked: bool = False
) -> list[str]:
    """Members (ids) that have not ended; without those whose workers were asked to end them, unless
    told otherwise."""
    values = {"id": str(group_id), "with_asked": with_asked}
    return [str(each) for each in connection.scalars(_UNFINISHED, values)]


_CANCEL = text(
    """
    UPDATE pgbeat.groups SET cancelled_by = :by, cancelled_at = now()
     WHERE id = :id AND state = 'running' AND cancelled_at IS NULL
    """
)


def mark_cancelled(connection: Connection, group_id: str | UUID, by: str) -> None:
    """Notes that no member is to begin any more. Who ends members in the same transaction does
    that first: rows of jobs are locked before their group's."""
    connection.execute(_CANCEL, {"id": str(group_id), "by": by})
