"""`finish`: a task's writes, its result, its job's end and its acknowledgement are one transaction.

Worker 1 has a main process with the claim, and a child with a thread for the task and one for its
recorder. The child, the worker or a session may be lost; then worker 2 gets the message. A person
cancels the job, unless its start is recorded. A transaction that locks only the job is a single
statement here. Left out: callbacks and chains, which are messages of the same transaction, failures
and retries of the task, and results without `finish`.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from tests.models.postgres import COMMIT, Lost, Model, Process, Statement, View, choice, roll_back

VARIANTS = {
    "recorder_writes_the_end_first": "the job completes with its writes and its result",
    "ends_of_others_unchecked": "the job completes with its writes and its result",
    "writes_committed_first": "what the task writes is there once at most",
    "acknowledgement_unchecked": "what the task writes is there once at most",
    "acknowledged_after_the_commit": "a completed job has no message",
    "claims_of_the_dead_kept": "the job ends, and its message is gone",
}
Steps = Generator[Statement, Any, Any]


class Attempt(NamedTuple):
    """The run of worker 1, in the memory of its child."""

    state: str = "running"
    is_queued: bool = True
    is_claimed: bool = False
    is_withdrawn: bool = False


class ClaimLost(Exception):
    """Nothing of the run is kept."""


def changed(
    name: str,
    when: Callable[[View], bool] | None = None,
    answer: str | None = None,
    **values: bool | str,
) -> Statement:
    """Returns a step that changes the attempt in memory, or tells the main process of its end."""

    def change(view: View) -> None:
        view.memory["attempt"] = view.memory["attempt"]._replace(**values)
        if answer is not None:
            view.memory["task"] = answer

    return Statement(name, run=change, when=when, is_local=True)


def model(bad: str | None = None) -> Model:
    """Returns the protocol, or a variant of it."""

    # ----- what both workers do

    def claims(me: str) -> Steps:
        def claim(view: View) -> bool:
            if "message" not in view.locked or view["message"] != "ready":
                return False
            view["message"] = me
            return True

        return (
            yield Statement(
                "broker/transport/consuming/claims.sql: claim",
                when=lambda view: view["message"] == "ready",
                locks=("message",),
                skips=True,
                run=claim,
                commits=True,
            )
        )

    def acknowledges(me: str, *, commits: bool = False) -> Steps:
        def acknowledge(view: View) -> bool:
            if view["message"] != me:
                return False
            view["message"] = None
            return True

        return (
            yield Statement(
                "broker/message_ends.sql: ack ~ claimed_by IS NOT DISTINCT FROM $2",
                locks=("message",),
                run=acknowledge,
                commits=commits,
            )
        )

    def begins(me: str) -> Steps:
        def begin(view: View) -> None:
            if view["job"] is not None and view["job"][1] in (None, "1"):
                view["job"] = ("running", me)

        yield Statement(
            "jobs/running/executions_begin.sql ~ pgbeat.is_last_execution(j.id, r.id, r.began_at)",
            locks=("job",),
            run=begin,
            commits=True,
        )

    def completes(run: Callable[[View], bool], *, commits: bool = False) -> Steps:
        return (
            yield Statement(
                "jobs/running/executions_go_on.sql ~ DELETE FROM pgbeat.unfinished_jobs j",
                locks=("job",),
                run=run,
                commits=commits,
            )
        )

    def ends(me: str, withdraws: Callable[[], Steps]) -> Steps:
        """Commits the task's end. Raises `ClaimLost`, and `Lost`."""

        def books(view: View) -> None:
            view[f"booking {me}"] = "made"

        def ends_job(view: View) -> bool:
            books(view)  # the task did, before
            return _end(view, "completed")

        def stores(view: View) -> None:
            view["result"] = "SUCCESS"

        if bad == "writes_committed_first":
            yield Statement("worker/finishing/finish.py: _finish", run=books, commits=True)
        yield from withdraws()
        has_moved = yield from completes(ends_job)
        if not has_moved and bad != "ends_of_others_unchecked":
            state = yield Statement(
                "jobs/states/endings.py: end_state", run=lambda view: view["ended"]
            )
            if state not in (None, "completed"):
                raise ClaimLost
        if bad == "acknowledged_after_the_commit":
            yield COMMIT
        is_mine = yield from acknowledges(me)
        if not is_mine and bad != "acknowledgement_unchecked":
            raise ClaimLost
        yield Statement("results/statements.sql: store", run=stores, commits=True)

    # ----- worker 1

    def main() -> Steps:
        """Sends what becomes of the message, which it has claimed."""

        def puts_back(view: View) -> None:
            if view["message"] == "1":
                view["message"] = "ready" if view["ended"] is None else None

        answer = yield Statement(
            "(the pool answers)",
            when=lambda view: view.memory["task"] != "runs",
            run=lambda view: view.memory["task"],
            is_local=True,
        )
        if answer == "requeue":
            yield Statement(
                "broker/transport/consuming/consumers.sql: claimed ~ m.claimed_by IS NOT DISTINCT",
                locks=lambda view: ["message"] if view["message"] == "1" else [],
                run=puts_back,
                commits=True,
            )
        else:
            yield from acknowledges("1", commits=True)

    def task() -> Steps:
        """Runs the task in a thread of the child."""

        def withdraws() -> Steps:
            is_early = bad == "recorder_writes_the_end_first"
            if not is_early:
                yield changed("worker/recording/outbox.py: Outbox.withdraw", is_withdrawn=True)
            yield changed(
                "worker/recording/outbox.py: Outbox.withdraw ~ not attempt.is_claimed",
                when=lambda view: is_early or not view.memory["attempt"].is_claimed,
                state="completed",
                is_queued=is_early,
            )

        answer = "acknowledge"
        try:
            yield from ends("1", withdraws)
            name = "worker/recording/recorder.py: Recorder.was_recorded"
            yield changed(name, answer=answer, is_queued=False)
            return
        except ClaimLost:
            yield from roll_back()
        except Lost:
            answer = "requeue"
        name = "worker/signals.py: _end"
        yield changed(name, answer=answer, state="undone", is_queued=True, is_withdrawn=False)

    def recorder() -> Steps:
        """Records the attempt in another thread of the child."""

        def claim(view: View) -> Attempt:
            attempt: Attempt = view.memory["attempt"]
            view.memory["attempt"] = attempt._replace(is_queued=False, is_claimed=True)
            return attempt

        def goes_back(view: View) -> None:
            if view["job"] == ("running", "1"):
                view["job"] = ("pending", "1")

        attempt = yield Statement(
            "worker/recording/outbox.py: Outbox.claim ~ attempt.is_withdrawn",
            when=lambda view: view.memory["attempt"].is_queued,
            run=claim,
            is_local=True,
        )
        if attempt.is_withdrawn:
            pass
        elif attempt.state == "running":
            yield from begins("1")
        elif attempt.state == "completed":
            yield from completes(lambda view: _end(view, "completed"), commits=True)
        else:
            yield Statement(
                "jobs/states/endings.sql: undecided ~ FOR NO KEY UPDATE",
                locks=("job",),
                run=goes_back,
                commits=True,
            )
        yield changed("worker/recording/outbox.py: Outbox.release", is_claimed=False)
        return ("recorder", ())

    def reporter() -> Steps:
        """Records in the main process that the child was killed."""

        def fails(view: View) -> None:
            if view["job"] is not None and view["job"][1] in (None, "1"):
                _end(view, "failed")

        yield Statement(
            "worker/signals.py: _report_failure",
            when=lambda view: view.memory["task"] == "killed",
            is_local=True,
        )
        yield Statement(
            "jobs/running/job_reports.py: record ~ jobs.lock(connection, job_ids)",
            locks=("job",),
            run=fails,
            commits=True,
        )

    # ----- the others

    def worker_2() -> Steps:
        """Runs the message if it gets it. It records the start of a run of any length."""

        def nothing() -> Steps:
            yield from ()

        if not (yield from claims("2")):
            return ("worker_2", ())
        if (yield choice("(its start is recorded)", True, False)):
            yield from begins("2")
        try:
            yield from ends("2", nothing)
        except ClaimLost:
            yield from roll_back()
        yield from acknowledges("2", commits=True)

    def releases() -> Steps:
        """Requeues what a dead consumer had, or deletes it if its job is over."""

        def is_dead(view: View) -> bool:
            return view["message"] == "1" and "consumer 1" not in view.alive

        def release(view: View) -> None:
            if "message" in view.locked and view["message"] == "1":
                view["message"] = "ready" if view["ended"] is None else None

        yield Statement(
            "broker/transport/consuming/consumers.sql: requeue ~ FOR UPDATE OF m SKIP LOCKED",
            when=lambda view: bad != "claims_of_the_dead_kept" and is_dead(view),
            locks=lambda view: ["message"],
            skips=True,
            run=release,
            commits=True,
        )
        return ("releases", ())

    def rescues() -> Steps:
        """Ends the job of a dead worker that has no message any more."""

        def is_lost(view: View) -> bool:
            has_none = view["message"] is None and view["job"] is not None
            return has_none and "1 is dead" in view.memory

        yield Statement(
            "jobs/rescuing/rescue.py: end_lost",
            when=is_lost,
            locks=("job",),
            run=lambda view: _end(view, "failed"),
            commits=True,
        )

    def cancels() -> Steps:
        """Cancels the job by hand, unless its start is recorded."""

        def ends_job(view: View) -> None:
            if "message" in view.locked and view["message"] == "ready":
                view["message"] = None
            _end(view, "cancelled")

        job = yield Statement(
            "jobs/rows/model.py: lock", locks=("job",), run=lambda view: view["job"]
        )
        if job is not None and job[0] == "pending":
            yield Statement(
                "broker/messages.sql: withdraw ~ FOR UPDATE SKIP LOCKED",
                locks=("message",),
                skips=True,
                run=ends_job,
            )
        yield COMMIT

    def forget(memory: dict[str, Any], names: tuple[str, ...]) -> None:
        if "main 1" in names:
            memory["1 is dead"] = True
        elif memory["task"] == "runs":
            memory["task"] = "killed"

    programs = (main, task, recorder, reporter, worker_2, releases, rescues, cancels)
    return Model(
        programs={program.__name__: program for program in programs},
        processes={
            "main 1": Process("main", advisory=frozenset({"consumer 1"})),
            "task 1": Process("task"),
            "recorder 1": Process("recorder"),
            "reporter 1": Process("reporter"),
            "worker 2": Process("worker_2"),
            "releaser": Process("releases"),
            "rescuer": Process("rescues"),
            "person": Process("cancels"),
        },
        rows={"message": "1", "job": ("pending", None)},
        memory={"task": "runs", "attempt": Attempt()},
        always={
            "what the task writes is there once at most": lambda view: (
                len(view.keys("booking ")) <= 1
            ),
            "the job completes with its writes and its result": lambda view: (
                (view["ended"] == "completed")
                == bool(view.keys("booking "))
                == (view["result"] is not None)
            ),
            "a completed job has no message": lambda view: (
                view["ended"] != "completed" or view["message"] is None
            ),
        },
        at_rest={
            "the job ends, and its message is gone": lambda view: (
                view["job"] is None and view["message"] is None
            )
        },
        kills=(("main 1", "task 1", "recorder 1", "reporter 1"), ("task 1", "recorder 1")),
        cuts=("main 1", "task 1"),
        forget=forget,
        faults=2,
    )


def _end(view: View, outcome: str) -> bool:
    if view["job"] is None:
        return False
    view["job"], view["ended"] = None, outcome
    return True
