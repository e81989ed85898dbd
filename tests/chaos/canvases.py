"""Canvases of tasks with policies: what is sent, and what must hold of each.

Whatever is done to their tasks, a canvas ends. It has its value if all its tasks completed, and
what they booked is there once.
"""

import random
from collections import Counter
from typing import Any
from uuid import uuid4

from billiard.exceptions import WorkerLostError
from celery import Celery, Signature, chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError
from celery.result import AsyncResult

from tests.chaos.app import POLICIES
from tests.chaos.record import Canvas, Record
from tests.chaos.site import Site

_HOW = {"return": 60, "retry": 8, "celery_retry": 6, "snooze": 10, "die": 2, "fail": 3, "obey": 11}
#: How often each is used: a lane that has more jobs than it can run is behind for long.
_TASKS = {
    "chaos.add": 4,
    "chaos.book": 4,
    "chaos.add_plainly": 2,
    "chaos.add_in_lane": 1,
    "chaos.book_in_lane": 1,
}


def prepare(site: Site) -> None:
    """Makes the table of what tasks book."""
    site.sql("CREATE TABLE booked (task uuid NOT NULL)")


def send(app: Celery, chance: random.Random, refused: set[str]) -> Canvas:
    """Sends a chain, a chord, one in the other, or a task with callbacks.

    If that is refused, perhaps after some tasks were sent, their ids stay among the refused.
    """
    tasks = _Tasks(app, chance)
    kind = chance.choice(["chain", "chord", "chord of chains", "chain with a chord", "callback"])
    size, callbacks = chance.randint(2, 4), list[str]()
    canvas: Signature
    if kind == "chain":
        canvas, value = tasks.chain(size), size
    elif kind == "chord":
        canvas, value = chord(tasks.first(size), tasks.next()), size + 1
    elif kind == "chord of chains":
        canvas, value = chord([tasks.chain(2) for _ in range(size)], tasks.next()), 2 * size + 1
    elif kind == "chain with a chord":
        # A group between two tasks becomes a chord, and the task after it its body.
        canvas = chain(tasks.first(1)[0], group([tasks.next() for _ in range(size)]), tasks.next())
        value = 2 * size + 1
    else:
        canvas, value = tasks.first(1)[0], 1
        last = tasks.ids.pop()
        canvas.link(tasks.next())
        errback = tasks.next("return").clone((0,))
        errback.set_immutable(True)
        canvas.link_error(errback)
        callbacks, tasks.ids = tasks.ids[:1], [last]
    refused.update(tasks.ids)
    result = canvas.apply_async(expires=None)
    refused.difference_update(tasks.ids)
    header = str(result.parent.id) if kind == "chain with a chord" else None
    return Canvas(kind, tasks.ids, value, callbacks, header)


class _Tasks:
    """Makes signatures with ids, and keeps these in order."""

    def __init__(self, app: Celery, chance: random.Random) -> None:
        self.app, self.chance, self.ids = app, chance, list[str]()

    def next(self, how: str | None = None) -> Signature:
        """A task that adds to what comes before."""
        task = self.chance.choices(list(_TASKS), list(_TASKS.values()))[0]
        if how is None:
            how = self.chance.choices(list(_HOW), list(_HOW.values()))[0]
        if POLICIES[task] is None:  # without a job there are no checkpoints
            how = "fail" if how == "fail" else "return"
        seconds = self.chance.choice([0, 0.02, 0.2] if "lane" in task else [0, 0.02, 0.2, 1.5])
        self.ids.append(str(uuid4()))
        options: dict[str, Any] = {"task_id": self.ids[-1]}
        if self.chance.random() < 0.1:
            options["countdown"] = self.chance.uniform(0.5, 3)
        return self.app.signature(task, kwargs={"seconds": seconds, "how": how}, options=options)

    def first(self, number: int) -> list[Signature]:
        """Tasks that begin with nothing."""
        return [self.next().clone(args=(0,)) for _ in range(number)]

    def chain(self, length: int) -> Signature:
        """Tasks that add to each other."""
        return chain(*self.first(1), *(self.next() for _ in range(length - 1)))


def send_unique(app: Celery, chance: random.Random) -> str:
    """Sends a task of which one at a time is enough; returns the id of the one that runs."""
    sent: AsyncResult = app.signature(
        "chaos.add_once", args=(chance.randint(1, 2),), kwargs={"seconds": 1.0}
    ).delay()
    return str(sent.id)


#: What a canvas must not do.
_NO_END = "a canvas that did not end"
_OTHER_VALUE = "a canvas with another value"
_NOT_COMPLETED = "a canvas that failed though its parts completed"
_WITHOUT_PART = "a canvas that completed without a part"
_NO_CALLBACK = "a callback that did not end"
_NO_UNIQUE = "a unique task that is not there"


def check(record: Record, ends: Counter[str], unsure: set[str]) -> dict[str, list[str]]:
    """Returns what breaks each promise. `ends` is how often each task came to its end.

    Results of those that are `unsure` may be on a server that was left behind. A chord counts the
    first end of a plain task that is stored, also that of a run that failed and is delivered again.
    """
    starts = Counter(line.id for line in record.journal if line.phase == "start")
    promised, found = record.promised, dict[str, list[str]]()
    for name, query in _NONE.items():
        found[name] = record.rows(query, *[sorted(unsure)][: query.count("%s")])
    tasks = dict(record.sql("SELECT id::text, task FROM pgbeat.jobs WHERE keeps_id"))
    late = [
        c.group
        for c in promised.canvases
        if c.group and _may_leave_chord(record.app, c, tasks, ends)
    ]
    for name, query in _NO_CHORD.items():
        found[name] = record.rows(query, late, list(promised.unanswered))
    found[_NO_UNIQUE] = sorted(promised.unique - tasks.keys())
    wrong = (_NO_END, _OTHER_VALUE, _NOT_COMPLETED, _WITHOUT_PART, _NO_CALLBACK)
    found |= {name: [] for name in wrong}
    for canvas in promised.canvases:
        if (fault := _wrong(record.app, canvas, tasks, unsure)) is not None:
            name, of = fault
            plain = [each for each in canvas.ids if POLICIES.get(tasks.get(each, "")) is None]
            if name == _NOT_COMPLETED and any(starts[each] > 1 for each in plain):
                continue
            found[name].append(f"{canvas.kind}: {of}")
    return found


def _wrong(
    app: Celery, canvas: Canvas, tasks: dict[str, str], unsure: set[str]
) -> tuple[str, Any] | None:
    """Which promise a canvas breaks, and with what."""
    last = app.AsyncResult(canvas.ids[-1])
    states = {each: app.AsyncResult(each).state for each in canvas.ids}
    if not last.ready():
        return None if unsure & states.keys() else (_NO_END, states)
    if last.state != "SUCCESS":
        others = {state for each, state in states.items() if each != canvas.ids[-1]}
        is_wrong = isinstance(last.result, ChordError) and others == {"SUCCESS"}
        return (_NOT_COMPLETED, states) if is_wrong else None
    if last.result != canvas.value:
        return _OTHER_VALUE, f"{last.result} for {canvas.value}: {states}"
    if not all(
        state == "SUCCESS" or _may_have_sent(app, part, tasks.get(part, ""))
        for part, state in states.items()
    ):
        return _WITHOUT_PART, states
    for each in canvas.callbacks:
        if each not in unsure and not app.AsyncResult(each).ready():
            return _NO_CALLBACK, f"{each} of {canvas.ids}"
    return None


def _may_leave_chord(
    app: Celery, canvas: Canvas, tasks: dict[str, str], ends: Counter[str]
) -> bool:
    """Whether the row of the chord that a task sends may stay until it expires.

    A run that was behind sent it once more after it had ended, whose members are jobs and don't run
    again. Or the task was ended while it sent it, and doesn't end in one transaction.
    """
    sender = canvas.ids[0]
    if ends[sender] > 1:
        return True
    return "book" not in tasks.get(sender, "") and app.AsyncResult(sender).state != "SUCCESS"


def sent_twice(sent: list[Canvas], ends: Counter[str]) -> set[str]:
    """Returns the tasks whose sender came to its end twice (`ends`, by task).

    They are sent again under the same ids. What is a job is there once, and runs once.
    """
    return {
        task
        for canvas in sent
        for task in (*canvas.ids, *canvas.callbacks)
        if (sender := canvas.sender_of(task)) is not None and ends[sender] > 1
    }


def _may_have_sent(app: Celery, part: str, task: str) -> bool:
    """Whether a part was killed after it sent what comes next, before its result was stored.

    Or cancelled before its start was recorded, in a pool that can't terminate it. That is so in
    plain Celery, and where a task does not end in one transaction.
    """
    error = app.AsyncResult(part).result
    return isinstance(error, WorkerLostError | TaskRevokedError) and "book" not in task


#: Queries that must return no row.
_NONE = {
    "a job whose task's result says something else": """
        SELECT j.id, j.task, j.state, r.status, j.error
          FROM pgbeat.jobs j LEFT JOIN pgbeat.results r ON r.task_id = j.id::text
         WHERE j.keeps_id
           AND r.status IS DISTINCT FROM CASE j.state WHEN 'completed' THEN 'SUCCESS'
                   WHEN 'failed' THEN 'FAILURE' ELSE 'REVOKED' END
           -- It failed by itself, and is not retried since somebody cancelled it.
           AND NOT (j.state = 'cancelled' AND r.status IS NOT DISTINCT FROM 'FAILURE')
           -- A worker or its process was killed between the two, or before it acknowledged the
           -- message of one that died; only those that book end in one transaction.
           AND NOT (coalesce(j.error, '') ~ '^(lost|WorkerLostError)'
                    AND r.status IS NOT DISTINCT FROM 'SUCCESS' AND j.task !~ '^chaos.book')
           AND NOT (r.status IS NULL AND j.task !~ '^chaos.book' AND j.id::text = ANY (%s))""",
    "a completed job whose row is not there once, or another's that is": """
        SELECT coalesce(j.id, b.task), j.state, count(b.task)
          FROM (SELECT id, state FROM pgbeat.jobs WHERE task ~ '^chaos.book') AS j
               FULL JOIN booked b ON b.task = j.id
         GROUP BY 1, 2
        HAVING count(b.task) <> CASE j.state WHEN 'completed' THEN 1 ELSE 0 END""",
}
#: The same of chords, but for some groups, and those with a part among some ids. Their sender was
#: refused after it had sent a part, and maybe set their size: Celery does so before it sends the
#: last one.
_NO_CHORD = {
    "a chord that did not end": """
        SELECT group_id, done, size FROM pgbeat.chords c
         WHERE NOT ended AND size IS NOT NULL AND group_id <> ALL (%s)
           AND NOT EXISTS (SELECT FROM pgbeat.chord_parts p
                            WHERE p.group_id = c.group_id AND p.task_id = ANY (%s))""",
    "a part of a chord that is left": """
        SELECT p.group_id, p.task_id FROM pgbeat.chord_parts p
          LEFT JOIN pgbeat.chords c USING (group_id)
         WHERE p.group_id <> ALL (%s) AND p.task_id <> ALL (%s)
           AND (c.size IS NOT NULL OR c.group_id IS NULL)""",
}
