"""Shows a canvas, a group or a chain of retries as one tree, and what blocks what in it.

Jobs know what sent them, their group and what comes next (`pgbeat.jobs.messages.canvas`). What else
the tree shows is known from the result backend, or said to be not tracked.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from uuid import UUID

from sqlalchemy import Connection

from pgbeat.access.actors import Actor
from pgbeat.access.redaction import Redactor
from pgbeat.jobs.explaining import explain, tree_rows
from pgbeat.jobs.explaining.tree_rows import TreeJob, TreeRows
from pgbeat.jobs.rows.model import ENDED, Job

Kind = Literal["job", "task", "hidden", "chain", "group", "chord", "job_group", "more"]
Relation = Literal["", "then", "body", "retry"]
#: Nodes of a tree, siblings that are shown, generations, and waiting jobs that are explained.
MOST, SIBLINGS, _DEEPEST, _EXPLAINED = 1_000, 20, 12, 100
NOT_TRACKED = "not tracked"
#: The step of a chord's body, and of retries.
_LAST = 1 << 30
#: Celery's states of results, as jobs have them.
_STATES = {
    "SUCCESS": "completed", "FAILURE": "failed", "REVOKED": "cancelled", "RETRY": "scheduled",
    "STARTED": "running",
}  # fmt: skip
#: The state that stands for several, the first that one of them has.
_WORST = (
    "failed", "cancelled", "running", "paused", "scheduled", "pending", "skipped", "completed",
)  # fmt: skip


@dataclass
class Node:
    """A job or another task, what groups them, or siblings that are not shown (`more`)."""

    kind: Kind
    #: Of the job, task or group; `None` for a chain, and for what the caller may not see.
    id: str | None = None
    #: Of the task, or of the group if it has one.
    name: str = ""
    #: To the node above, or before: it follows in a chain, is a chord's body, or retries a job.
    relation: Relation = ""
    #: A job's state; `not tracked` for an unknown task; `None` for one to come.
    state: str | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempt: int = 1
    error: str | None = None
    #: Where it is, and what blocks it: a sentence without its subject.
    where: str | None = None
    #: Ids of the jobs that it waits for.
    waits_for: list[str] = field(default_factory=list)
    #: How many members, or siblings that are not shown, are in which state.
    counts: dict[str, int] = field(default_factory=dict)
    children: list["Node"] = field(default_factory=list)
    is_asked: bool = False

    def all(self) -> Iterator["Node"]:
        """Yields the node and all below it."""
        todo = [self]
        while todo:
            node = todo.pop()
            yield node
            todo += node.children

    def outcome(self) -> str:
        """Returns the state, that of its last retry, or that of what it groups."""
        if self.children and self.children[-1].relation == "retry":
            return self.children[-1].outcome()
        if self.state is not None or self.kind in ("job", "task", "more"):
            return self.state or "to come"
        states = {child.outcome() for child in self.children}
        return next((state for state in _WORST if state in states), NOT_TRACKED)


@dataclass
class Tree:
    """The tree that a job is a part of."""

    root: Node
    #: False if it has more than 10,000 jobs.
    is_whole: bool


def of_job(
    connection: Connection,
    redactor: Redactor,
    job: Job,
    *,
    prefix: str = "",
    siblings: int = SIBLINGS,
) -> Tree:
    """Returns the tree of a job that the redactor's actor may see, with their other jobs in it.

    `prefix` is that of the result backend. Of more than `siblings`, the rest is counted.
    """
    rows = tree_rows.read(connection, job)
    root = _Builder(connection, redactor.actor, job, rows, prefix).build()
    _Folding(siblings).fold(root, 0)
    jobs = (node for node in root.all() if node.kind == "job")
    waiting = {str(node.id): node for node in jobs if node.state not in ENDED}
    for job_id, where in explain.sentences(connection, redactor, [*waiting][:_EXPLAINED]).items():
        waiting[job_id].where = where
    redactor.mask_errors(root.all())
    return Tree(root, rows.is_whole)


class _Builder:
    """Puts nodes below each other. Each has one parent at most, so nothing can go in circles."""

    def __init__(
        self, connection: Connection, actor: Actor, job: Job, rows: TreeRows, prefix: str
    ) -> None:
        self._actor = actor
        self._rows = sorted(rows.jobs.values(), key=lambda row: row.order)
        self._root_id, self._asked = str(rows.root_id), job.id
        self._jobs = {str(row.id): row for row in self._rows}
        self._nodes = {str(row.id): self._node(row) for row in self._rows}
        #: By the id of what follows in a chain, and of a chord's body: the job before, the group.
        self._before: dict[str, str] = {}
        self._bodies: dict[str, str] = {}
        #: The first member of each of Celery's groups.
        self._heads: dict[str, TreeJob] = {}
        for row in self._rows:
            if row.named("next"):
                self._before.setdefault(row.named("next")["id"], str(row.id))
            if row.named("chord") and row.canvas_group:
                self._bodies.setdefault(row.named("chord")["id"], row.canvas_group)
        for row in self._rows:
            if row.canvas_group and str(row.id) not in self._bodies:
                self._heads.setdefault(row.canvas_group, row)
        named = {self._root_id, *self._before, *self._bodies}
        named |= {str(row.parent_id) for row in self._rows if row.parent_id}
        untracked = named - self._jobs.keys() if actor.sees_all else set()
        self._statuses = tree_rows.statuses(connection, untracked, prefix)
        self._chords = tree_rows.chords(connection, set(self._bodies.values()), prefix)
        group_ids = {of for row in self._rows for of in (row.group_id, row.callback_of) if of}
        self._groups = tree_rows.group_rows(connection, group_ids)
        self._bodies |= {str(row.id): str(row.callback_of) for row in self._rows if row.callback_of}
        self._parents = tree_rows.open_parents(connection, self._rows)
        self._chains: dict[str, Node] = {}
        self._containers: dict[str, Node] = {}
        self._placed: list[tuple[int, Node, Node | None]] = []

    def build(self) -> Node:
        """Returns the root."""
        for row in self._rows:
            self._place(row)
        self._add_untracked()
        self._add_edges()
        root = self._containers.get(self._root_id) or self._anchor(self._root_id)
        if root is None:
            root = Node("task", self._root_id, state=self._status(self._root_id))
        top = self._jobs.get(self._root_id)
        if top is not None and (of := str(top.group_id or top.callback_of)) in self._containers:
            root = self._containers[of]
        for _, node, parent in sorted(self._placed, key=lambda placed: placed[0]):
            if node is not root:
                (parent or root).children.append(node)
        for node in (root, *self._containers.values()):
            if node.kind in ("group", "chord", "job_group"):
                members = [child for child in node.children if child.relation == ""]
                node.counts = _counted(members)
        return root

    def _node(self, row: TreeJob) -> Node:
        if not self._sees(row):
            return Node("hidden", state=row.state)
        return Node(
            "job", str(row.id), row.task, state=row.state, created_at=row.created_at,
            started_at=row.started_at, finished_at=row.finished_at, attempt=row.attempt,
            error=row.error, is_asked=row.id == self._asked,
        )  # fmt: skip

    def _sees(self, row: TreeJob) -> bool:
        return self._actor.sees_all or row.created_by == self._actor.name

    # -- where each node goes

    def _place(self, row: TreeJob) -> None:
        job_id, node = str(row.id), self._nodes[str(row.id)]
        if row.retry_of is not None and str(row.retry_of) in self._nodes:
            node.relation = "retry"
            self._put(node, self._nodes[self._first(job_id)])
            return
        if job_id in self._before:
            self._then(node, self._before[job_id])
            return
        if row.named("next"):
            chain = self._chain(job_id)
            self._put(node, chain)
            node = chain
        if job_id in self._bodies:
            node.relation = "body"
        self._put(node, self._above(row))

    def _above(self, row: TreeJob) -> Node | None:
        """Returns the node below which a job, or the chain that it begins, belongs."""
        job_id = str(row.id)
        if job_id in self._bodies:
            return self._container(self._bodies[job_id], row)
        if row.group_id in self._groups:
            return self._container(str(row.group_id), row)
        if row.canvas_group:
            return self._container(row.canvas_group, row)
        return self._sender(row)

    def _sender(self, row: TreeJob) -> Node | None:
        """Returns the node of the task that sent a job; `None` for the root."""
        if row.parent_id is None or row.parent_id == row.id or not self._sees(row):
            return self._nodes.get(str(row.parent_id))
        parent_id = str(row.parent_id)
        if parent_id not in self._nodes and parent_id != self._root_id:
            node = Node("task", parent_id, state=self._status(parent_id))
            self._nodes[parent_id] = node
            self._put(node, None)
        return self._nodes.get(parent_id)

    def _container(self, group_id: str, row: TreeJob) -> Node:
        """Returns the node of a group, which is made for its first member."""
        if group_id in self._containers:
            return self._containers[group_id]
        known = next((group for group in self._groups.values() if str(group.id) == group_id), None)
        body = next((task_id for task_id, of in self._bodies.items() if of == group_id), None)
        if known is not None:
            name = known.name or ""
            node = Node("job_group", group_id, name, created_at=known.created_at,
                        finished_at=known.finished_at, state=known.state)  # fmt: skip
            node.where = "one after the other" if known.mode == "sequential" else None
        else:
            node = Node("chord" if body else "group", group_id)
        self._containers[group_id] = node
        before = self._before.get(group_id) or self._before.get(body or "")
        if before is not None and before in self._nodes:
            self._then(node, before)
        else:
            outer = self._jobs.get(body or "")
            if outer is not None and outer.canvas_group not in (None, group_id):
                self._put(node, self._container(str(outer.canvas_group), outer))
            else:
                self._put(node, self._sender(self._heads.get(group_id, row)))
        return node

    def _chain(self, job_id: str) -> Node:
        """Returns the node of the chain that a job is a part of."""
        head = (self._chain_before(job_id) or [job_id])[-1]
        return self._chains.setdefault(head, Node("chain"))

    def _chain_before(self, job_id: str) -> list[str]:
        """Returns those that come before a job in its chain, the nearest first."""
        before_it: list[str] = []
        before = self._before.get(job_id)
        while before is not None and before != job_id and before not in before_it[-1:]:
            before_it.append(before)
            before = self._before.get(before)
            if len(before_it) > MOST:
                break
        return before_it

    def _first(self, job_id: str) -> str:
        """Returns the job at the beginning of a chain of retries."""
        seen: set[str] = set()
        while job_id not in seen and (of := self._jobs[job_id].retry_of) is not None:
            seen.add(job_id)
            if str(of) not in self._jobs:
                break
            job_id = str(of)
        return job_id

    def _anchor(self, job_id: str) -> Node | None:
        node = self._chains.get(job_id)
        return self._nodes.get(job_id) if node is None else node

    def _put(self, node: Node, parent: Node | None, step: int = 0) -> None:
        """Puts a node below another one, or the root: after those of lower steps."""
        is_last = node.relation in ("body", "retry")
        self._placed.append((_LAST if is_last else step, node, parent))

    def _then(self, node: Node, before: str) -> None:
        """Puts a node into the chain, after the job before it."""
        node.relation = "then"
        self._put(node, self._chain(before), 1 + len(self._chain_before(before)))

    def _add_edges(self) -> None:
        """Adds which jobs each job waits for."""
        last: dict[UUID | None, str] = {}
        for row in self._rows:  # by their positions
            waits_for = self._parents.get(row.id, [])
            if row.group_id is not None and row.state not in ENDED:
                if row.is_blocked and not waits_for and row.group_id in last:
                    waits_for = [last[row.group_id]]
                last[row.group_id] = str(row.id)
            if self._sees(row):
                self._nodes[str(row.id)].waits_for += waits_for

    # -- tasks that are no jobs

    def _add_untracked(self) -> None:
        """Adds tasks that are no jobs: next tasks of chains, bodies and members of chords."""
        for row in self._rows:
            following = row.named("next")
            is_there = following.get("id") in self._nodes or following.get("id") in self._bodies
            is_there = is_there or following.get("id") in self._containers
            if following and not is_there and self._sees(row):
                self._then(self._following(row, following), str(row.id))
        for body_id, group_id in self._bodies.items():
            chord = self._containers.get(group_id)
            if chord is not None:
                self._add_members(group_id, chord)
                if body_id not in self._nodes and body_id not in self._containers:
                    self._put(self._body(body_id, group_id), chord)

    def _following(self, row: TreeJob, named: dict[str, str]) -> Node:
        node = Node("task", named["id"], named["task"], "then")
        node.state = self._status(named["id"])
        if node.state == NOT_TRACKED and row.state != "completed":
            node.state = None
            node.where = "is not sent" if row.state in ENDED else "comes after the one before"
            node.waits_for = [] if row.state in ENDED else [str(row.id)]
        return node

    def _body(self, body_id: str, group_id: str) -> Node:
        members = [row for row in self._rows if row.canvas_group == group_id]
        named = next((row.named("chord") for row in members if self._sees(row)), {})
        node = Node("task", body_id if named else None, named.get("task", ""), "body")
        node.state, counts = self._status(body_id), self._chords.get(group_id)
        if node.state == NOT_TRACKED and counts is not None and not counts.ended:
            node.state = None
            left = [row for row in members if row.state not in ENDED and self._sees(row)]
            node.waits_for = [str(row.id) for row in left[:20]]
            if counts.size is None:
                node.where = "waits for its members"
            else:
                node.where = f"waits for {counts.size - counts.done} of {counts.size} members"
        return node

    def _add_members(self, group_id: str, chord: Node) -> None:
        """Adds how many members of a chord are no jobs, if the chord's size is known."""
        counts = self._chords.get(group_id)
        members = {
            (row.canvas or {}).get("index", str(row.id))
            for row in self._rows
            if row.canvas_group == group_id and str(row.id) not in self._bodies
        }
        left = 0 if counts is None or counts.size is None else counts.size - len(members)
        if left > 0:
            self._put(Node("more", counts={NOT_TRACKED: left}, state=NOT_TRACKED), chord)

    def _status(self, task_id: str) -> str:
        """Returns the state of a task that is no job, from its result: for administrators."""
        status = self._statuses.get(task_id)
        return NOT_TRACKED if status is None else _STATES.get(status, status.lower())


class _Folding:
    """Leaves out nodes that are too many, and counts them."""

    def __init__(self, siblings: int) -> None:
        self._siblings, self._left = siblings, MOST

    def fold(self, node: Node, depth: int) -> None:
        """Folds the children of a node, and theirs."""
        self._left -= 1
        some = node.children
        room = max(0, min(self._siblings, self._left)) if depth < _DEEPEST else 0
        if len(some) > room:
            ranked = sorted(range(len(some)), key=lambda place: (self._rank(some[place]), place))
            kept = set(ranked[:room])
            rest = [child for place, child in enumerate(some) if place not in kept]
            node.children = [child for place, child in enumerate(some) if place in kept]
            more = Node("more", counts=_counted(rest))
            has_body = any(child.relation == "body" for child in node.children[-1:])
            node.children.insert(len(node.children) - has_body, more)
        for child in node.children:
            self.fold(child, depth + 1)

    def _rank(self, node: Node) -> int:
        if any(part.is_asked for part in node.all()) or node.relation == "body":
            return 0
        order = {"failed": 1, "running": 2, "completed": 4, "skipped": 4}
        return order.get(node.outcome(), 3)


def _counted(nodes: Iterable[Node]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for node in nodes:
        counts.update(node.counts if node.kind == "more" else [node.outcome()])
    return dict(counts.most_common())
