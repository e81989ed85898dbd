"""Reads the place of a task in Celery's canvas: what sent it, its group and chord, what is next.

Celery's messages say it, and a job's row keeps it. Ids that are no UUIDs are left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from celery._state import get_current_worker_task

from pgbeat.jobs.rows.model import Job
from pgbeat.storable import is_storable

#: How deep signatures are looked into.
_DEEPEST = 20


class Place(NamedTuple):
    """Columns of a job. All are `None` for a task that is no part of anything.

    `root_id` is the task at the top or, of tasks that were sent together, the id of their group.
    `canvas` has those of these keys that apply: `group`, the group or chord header that the task
    is a member of, by itself or through its chain, and its `index` there; `chord`, the first task
    of the body (`id`, `task`); `next`, what follows it in its chain (`id`, `task`).
    """

    root_id: str | None = None
    parent_id: str | None = None
    canvas: dict[str, Any] | None = None


NOWHERE = Place()


class SendingTask(NamedTuple):
    """The task that submits jobs, and the one at its top; `None` outside of tasks."""

    root_id: UUID | None
    parent_id: UUID | None

    def of(self, job: Job) -> Job:
        """Returns the job with its place."""
        if self.parent_id is None:
            return job
        return job._replace(root_id=self.root_id, parent_id=self.parent_id)


_NOBODY = SendingTask(None, None)


def of_message(headers: Mapping[str, Any], embedded: Mapping[str, Any]) -> Place:
    """Returns the place of a message's task: its headers, and the third part of its body."""
    return _place(
        headers["id"],
        headers.get("root_id"),
        headers.get("parent_id"),
        headers.get("group"),
        headers.get("group_index"),
        embedded.get("chord"),
        embedded.get("chain"),
    )


def of_request(request: Any) -> Place:
    """Returns the place of a task that a worker runs. It must not have returned yet."""
    return _place(
        request.id,
        request.root_id,
        request.parent_id,
        request.group,
        request.group_index,
        request.chord,
        request.chain,
    )


def within_task() -> SendingTask:
    """Returns the place of what the running task submits, if one runs."""
    running = get_current_worker_task()
    if running is None:
        return _NOBODY
    request = running.request
    root_id, own_id = (_parsed(value) for value in (request.root_id, request.id))
    return SendingTask(root_id or own_id, own_id)


def _place(
    task_id: Any, root_id: Any, parent_id: Any, group: Any, index: Any, chord: Any, chain: Any
) -> Place:
    if parent_id is None and not (group or chain) and (root_id is None or root_id == task_id):
        return NOWHERE
    following = None
    if chain:
        following, last = _first(chain[-1]), _last(chain[0])
        if group is None:
            group, index = last.get("group_id"), last.get("group_index")
            chord = last.get("chord")
    canvas: dict[str, Any] = {}
    group = _uuid(group)
    if group is not None:
        canvas["group"] = group
        if isinstance(index, int):
            canvas["index"] = index
        if isinstance(chord, Mapping):
            canvas["chord"] = _first(chord)
    if following is not None:
        canvas["next"] = following
    root = _uuid(root_id) if root_id != task_id else None
    if root is None and parent_id is None and group is not None:
        root = _outermost(group, chord)
    return Place(root, _uuid(parent_id), canvas or None)


def _outermost(group: str, chord: Any) -> str:
    """Returns the outermost of a member's groups: that of its chord's body, and so on."""
    for _ in range(_DEEPEST):
        if not isinstance(chord, Mapping):
            break
        options = _last(chord)
        group, chord = _uuid(options.get("group_id")) or group, options.get("chord")
    return group


def _parts(signature: Any) -> Sequence[Any]:
    """Returns the signatures of a chain or a group."""
    tasks = (signature.get("kwargs") or {}).get("tasks")
    return tasks if isinstance(tasks, Sequence) else ()


def _last(signature: Any) -> Mapping[str, Any]:
    """Returns the options of the last task of a signature."""
    for _ in range(_DEEPEST):
        kind = signature.get("subtask_type")
        if kind == "chain" and _parts(signature):
            signature = _parts(signature)[-1]
        elif kind == "chord" and isinstance(body := signature["kwargs"].get("body"), Mapping):
            signature = body
        else:
            break
    options: Mapping[str, Any] = signature.get("options") or {}
    return options


def _first(signature: Any) -> dict[str, str] | None:
    """Returns the id and the task of what a signature begins with; of a group, the group's id."""
    for _ in range(_DEEPEST):
        if signature.get("subtask_type") != "chain" or not _parts(signature):
            break
        signature = _parts(signature)[0]
    task_id = _uuid((signature.get("options") or {}).get("task_id"))
    name = signature.get("subtask_type") or signature.get("task")
    if task_id is None or not isinstance(name, str) or not is_storable(name):
        return None
    return {"id": task_id, "task": name}


def _uuid(value: Any) -> str | None:
    """Returns an id as it is compared, or `None` if it is no UUID."""
    parsed = _parsed(value)
    return None if parsed is None else str(parsed)


def _parsed(value: Any) -> UUID | None:
    try:
        return None if value is None else UUID(value)
    except (ValueError, AttributeError, TypeError):
        return None
