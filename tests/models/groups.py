"""A group's end: its members' ends, an automatic retry, and a retry by hand at the same moment.

Member `b` fails, and its policy retries it; `a` may fail, and a person retries it. The end of the
last member finishes the group and unblocks its callback. Left out: sequential groups, policies on
failure, cancellation, and the leader's search for stuck groups, which might hide a mistake.
"""

from collections.abc import Generator
from typing import Any

from tests.models.postgres import COMMIT, Lost, Model, Process, Statement, View, choice

VARIANTS = {
    "retry_skips_the_group_lock": "a group that has ended has no unfinished member",
    "automatic_retry_after_the_commit": "a group that has ended has no unfinished member",
    "members_read_as_the_group_is_locked": "a group that runs has an unfinished member",
    "group_unlocked": "a group that runs has an unfinished member",
    "called_back_after_the_commit": "the callback runs once, with the end",
    "advanced_after_the_commit": "the group ends",
}
Steps = Generator[Statement, Any, tuple[str, tuple[Any, ...]] | None]
#: The retry that a job's policy makes.
_RETRIES = {"b": "b's retry"}


def model(bad: str | None = None) -> Model:
    """Returns the protocol, or a variant of it."""

    def end(job: str, outcome: str) -> Generator[Statement, Any, None]:
        """Records the end of a job, with what follows from it, in one transaction."""
        retry = _RETRIES.get(job) if outcome == "failed" else None

        def moves(view: View) -> bool:
            if view[f"job {job}"] is None:
                return False
            view[f"job {job}"], view[f"ended {job}"] = None, (outcome, retry)
            return True

        def makes_retry(view: View) -> None:
            view[f"job {retry}"] = "member"

        has_ended = yield Statement(
            "jobs/running/executions_go_on.sql ~ DELETE FROM pgbeat.unfinished_jobs j",
            locks=(f"job {job}",),
            run=moves,
        )
        if bad in ("automatic_retry_after_the_commit", "advanced_after_the_commit"):
            yield COMMIT
        if has_ended and retry and bad != "automatic_retry_after_the_commit":
            yield Statement("jobs/states/retries.sql: automatic", run=makes_retry)
        if has_ended:
            yield from advance()
        yield COMMIT
        if has_ended and retry and bad == "automatic_retry_after_the_commit":
            yield Statement("jobs/states/retries.sql: automatic", run=makes_retry, commits=True)

    def advance() -> Generator[Statement, Any, None]:
        """Finishes the group if no member is left."""

        def finishes(view: View) -> None:
            view["group"] = "ended"

        def unblocks(view: View) -> None:
            view["callbacks"] = (view["callbacks"] or 0) + 1

        is_running, has_unfinished = yield Statement(
            "jobs/groups/progress.py: _LOCK ~ FOR UPDATE",
            locks=() if bad == "group_unlocked" else lambda view: ["group"],
            run=lambda view: (view["group"] == "running", bool(_unfinished(view))),
        )
        if not is_running:
            return
        if bad != "members_read_as_the_group_is_locked":
            has_unfinished = yield Statement(
                "jobs/groups/progress.sql: members ~ FROM pgbeat.unfinished_jobs WHERE group_id",
                run=lambda view: bool(_unfinished(view)),
            )
        if has_unfinished:
            return
        yield Statement("jobs/groups/progress.py: _FINISH ~ state = 'running'", run=finishes)
        if bad == "called_back_after_the_commit":
            yield COMMIT
        yield Statement("jobs/groups/progress.sql: call_back ~ is_blocked", run=unblocks)

    def records(job: str) -> Steps:
        outcomes = ["completed", "failed"] if job == "a" else ["failed"]
        outcome = yield choice("(the task ends)", *outcomes)
        return ("writes", (job, outcome))

    def writes(job: str, outcome: str) -> Steps:
        try:
            yield from end(job, outcome)
        except Lost:
            return ("writes", (job, outcome))
        return None

    def works() -> Steps:
        """Executes the retries."""
        job = yield Statement(
            "broker/transport/consuming/claims.sql: claim",
            when=lambda view: any("retry" in key for key in view.keys("job ")),
            run=lambda view: next(key[4:] for key in view.keys("job ") if "retry" in key),
        )
        yield from end(job, "completed")
        return ("works", ())

    def rescues(job: str) -> Steps:
        """Ends the job of a worker that was killed."""
        yield Statement(
            "jobs/rescuing/rescue.py: rescue",
            when=lambda view: view.memory["killed"] and view[f"job {job}"] is not None,
        )
        yield from end(job, "failed")
        return None

    def retries() -> Steps:
        """Retries `a` by hand."""

        def inserts(view: View) -> None:
            view["job a's retry"] = "member" if view["group"] == "running" else "alone"
            view["ended a"] = ("failed", "a's retry")

        yield Statement("(a person sees a failure)", when=lambda view: _has_failed(view["ended a"]))
        yield Statement("jobs/verbs/control.py: lock", locks=("ended a",))
        yield (
            Statement(
                "jobs/states/retries.sql: by_hand ~ g.state = 'running' FOR SHARE",
                locks=lambda view: ["group"] if view["group"] == "running" else [],
                shares=True,
                run=inserts,
            )
            if bad != "retry_skips_the_group_lock"
            else Statement("jobs/states/retries.sql: by_hand", run=inserts)
        )
        yield COMMIT
        return None

    programs = (records, writes, works, rescues, retries)
    return Model(
        programs={program.__name__: program for program in programs},
        processes={
            "worker of a": Process("records", ("a",)),
            "worker of b": Process("records", ("b",)),
            "another worker": Process("works"),
            "rescuer": Process("rescues", ("a",)),
            "person": Process("retries"),
        },
        rows={"group": "running", "job a": "member", "job b": "member"},
        memory={"killed": False},
        always={
            "a group that has ended has no unfinished member": lambda view: (
                view["group"] == "running" or not _unfinished(view)
            ),
            "a group that runs has an unfinished member": lambda view: (
                view["group"] == "ended" or bool(_unfinished(view))
            ),
            "the callback runs once, with the end": lambda view: (
                view["callbacks"] == (1 if view["group"] == "ended" else None)
            ),
        },
        at_rest={"the group ends": lambda view: view["group"] == "ended"},
        kills=(("worker of a",),),
        cuts=("worker of a", "worker of b"),
        forget=lambda memory, names: memory.update(killed=True),
        faults=2,
    )


def _unfinished(view: View) -> list[str]:
    return [key for key in view.keys("job ") if view[key] == "member"]


def _has_failed(ended: tuple[str, str | None] | None) -> bool:
    return ended == ("failed", None)
