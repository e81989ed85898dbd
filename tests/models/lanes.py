"""A lane's slots: three jobs, two slots, two workers, the leader, a person who raised the limit.

The end of a job dispatches the lane in its own transaction, or after it if another one has the lane
for long; the person dispatches it too, and the leader dispatches what is left. Left out: rates,
policies, fair lanes and direct executions.
"""

from collections.abc import Generator
from typing import Any

from tests.models.postgres import COMMIT, Lost, Model, Process, Statement, View, choice

LIMIT = 2
JOBS = ("job a", "job b", "job c", "job d")
VARIANTS = {
    "lane_unlocked": "the limit holds",
    "counted_as_the_lane_is_locked": "the limit holds",
    "slot_freed_twice": "the limit holds",
    "sent_after_the_commit": "a job with a slot has a message or a worker",
    "nobody_dispatches_what_is_left": "every job runs",
}
Steps = Generator[Statement, Any, Any]


def model(bad: str | None = None) -> Model:
    """Returns the protocol, or a variant of it."""

    def free(view: View) -> int:
        if bad == "slot_freed_twice":
            return int(view["lane"])  # counted by those that give and free slots
        return LIMIT - len(_holders(view.subquery()))

    def take(name: str, *, locks_lane: bool = False) -> Statement:
        """Returns the statement that gives free slots to the first jobs in line, and commits."""

        def chooses(view: View) -> list[str]:
            waiting = [key for key in view.keys("job ") if view[key] == "waits"]
            return [*waiting, *(["lane"] if locks_lane else [])]

        def gives(view: View) -> tuple[str, ...]:
            chosen = [k for k in sorted(view.locked) if k != "lane" and view[k] == "waits"]
            chosen = chosen[: max(0, free(view))]
            for key in chosen:
                view[key] = "bare" if bad == "sent_after_the_commit" else "sent"
            if bad == "slot_freed_twice":
                view["lane"] -= len(chosen)
            return tuple(chosen)

        return Statement(name, locks=chooses, skips=not locks_lane, run=gives, commits=True)

    def sends(jobs: tuple[str, ...]) -> Steps:
        for job in jobs if bad == "sent_after_the_commit" else ():
            yield Statement(
                "jobs/flow/lifecycle.py: publish",
                run=lambda view, job=job: view.__setitem__(job, "sent"),  # type: ignore[misc]
                commits=True,
            )

    def dispatches() -> Steps:
        """Gives slots in a separate transaction."""
        name = "jobs/lanes/slots.sql: take_first ~ FOR UPDATE SKIP LOCKED"
        if bad == "counted_as_the_lane_is_locked":
            jobs = yield take(name, locks_lane=True)
        else:
            if bad != "lane_unlocked":
                yield Statement("jobs/lanes/model.py: lock ~ with_for_update", locks=("lane",))
            jobs = yield take(name)
        yield from sends(jobs)

    def has_the_lane() -> Steps:
        """Locks the lane in the transaction that ends a job, unless that takes long."""
        lock = Statement(
            "database/migrations: pgbeat.take_next ~ FOR NO KEY UPDATE SKIP LOCKED",
            locks=("lane",),
            skips=True,
            run=lambda view: "lane" in view.locked,
        )
        if bad == "lane_unlocked" or (yield lock):
            return True
        if (yield choice("(20 milliseconds)", "suffice", "are over")) == "are over":
            return False
        yield lock._replace(name="database/migrations: pgbeat.take_next ~ '20ms'", skips=False)
        return True

    def ends(job: str) -> Steps:
        """Records the end of a job."""

        def end(view: View) -> bool:
            if view[job] is None:
                return bad == "slot_freed_twice"
            view[job] = None
            return True

        def frees(view: View) -> None:
            view["lane"] += 1

        has_ended = yield Statement(
            "jobs/running/executions_go_on.sql ~ DELETE FROM pgbeat.unfinished_jobs j",
            locks=(job,),
            run=end,
        )
        if bad == "slot_freed_twice" and has_ended:
            yield Statement("(the lane's counter)", locks=("lane",), run=frees)
        has_lane = has_ended and (yield from has_the_lane())
        if has_lane:
            name = "database/migrations: pgbeat.take_next ~ LIMIT least(most, greatest(0,"
            yield from sends((yield take(name)))
            return
        yield COMMIT
        if has_ended and bad != "nobody_dispatches_what_is_left":
            yield from dispatches()

    def works(me: str) -> Steps:
        """Takes a message, and executes its job."""

        def claim(view: View) -> str | None:
            for key in sorted(view.locked):
                if view[key] == "sent":
                    view[key] = me
                    return key
            return None

        try:
            job = yield Statement(
                "broker/transport/consuming/claims.sql: claim",
                when=lambda view: any(view[key] == "sent" for key in JOBS),
                locks=JOBS,
                skips=True,
                run=claim,
                commits=True,
            )
        except Lost:
            return ("is_released", (me,))
        return ("runs", (me, job)) if job else ("works", (me,))

    def is_released(me: str) -> Steps:
        """Loses what it may have claimed."""

        def requeue(view: View) -> None:
            for key in view.locked:
                if view[key] == me:
                    view[key] = "sent"

        yield Statement(
            "broker/transport/consuming/consumers.sql: requeue",
            locks=JOBS,
            skips=True,
            run=requeue,
            commits=True,
        )
        return ("works", (me,))

    def runs(me: str, job: str) -> Steps:
        try:
            yield from ends(job)
        except Lost:
            return ("runs", (me, job))  # recorded again
        return ("works", (me,))

    def leads() -> Steps:
        """Ends the job of the worker that was killed, and dispatches what others left."""

        def lost(view: View) -> list[str]:
            jobs = [key for key in view.keys("job ") if view[key] == "worker 1"]
            return jobs if view.memory["killed"] else []

        def is_left(view: View) -> bool:
            waits = any(view[key] == "waits" for key in view.keys("job "))
            return waits and free(view) > 0 and bad != "nobody_dispatches_what_is_left"

        jobs = yield Statement(
            "jobs/lanes/model.sql: to_dispatch",
            when=lambda view: bool(lost(view)) or is_left(view),
            run=lambda view: tuple(lost(view)),
        )
        yield from (ends(*jobs) if jobs else dispatches())
        return ("leads", ())

    def raises_limit() -> Steps:
        """Dispatches the lane, whose limit a person has raised."""
        yield from dispatches()

    programs = (works, is_released, runs, leads, raises_limit)
    rows = {"job a": "sent", "job b": "waits", "job c": "waits"}
    if bad == "slot_freed_twice":
        rows["job d"] = "waits"
    return Model(
        programs={program.__name__: program for program in programs},
        processes={
            "worker 1": Process("works", ("worker 1",)),
            "worker 2": Process("works", ("worker 2",)),
            "leader": Process("leads"),
            "person": Process("raises_limit"),
        },
        rows={"lane": 1, **rows},
        memory={"killed": False},
        always={
            "the limit holds": lambda view: len(_holders(view)) <= LIMIT,
            "a job with a slot has a message or a worker": lambda view: all(
                view[key] != "bare" for key in view.keys("job ")
            ),
        },
        at_rest={"every job runs": lambda view: not view.keys("job ")},
        kills=(("worker 1",), ("person",)),
        cuts=("worker 1",),
        forget=lambda memory, names: memory.update(killed=memory["killed"] or "worker 1" in names),
    )


def _holders(view: View) -> list[str]:
    return [key for key in view.keys("job ") if view[key] != "waits"]
