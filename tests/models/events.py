"""`wait_for` and `emit`: a job that waits, a program that emits, two workers, beat and a timeout.

Worker 1 or the program may be killed or lose its session; a worker whose session is lost is taken
for dead, and works on. An attempt that has its answer may be tried again once, and a killed one
is. Left out: other keys, a pause, lanes, and the records of attempts that don't decide.
"""

from collections.abc import Generator
from typing import Any

from tests.models.postgres import COMMIT, Lost, Model, Process, Statement, View, choice

VARIANTS = {
    "unlocked": "no job waits for an event that is there",
    "snooze_looks_for_no_event": "no job waits for an event that is there",
    "jobs_chosen_by_a_snapshot": "no job waits for an event that is there",
    "timeouts_not_written": "all attempts get the same answer",
}
Steps = Generator[Statement, Any, Any]


def model(bad: str | None = None) -> Model:
    """Returns the protocol, or a variant of it."""

    def works(me: str) -> Steps:
        """Takes the job's message, and begins or continues to wait."""

        def claim(view: View) -> bool:
            if "message" not in view.locked or view["message"] != "ready":
                return False
            view["message"] = me
            return True

        def begin(view: View) -> None:
            if view["job"] is not None:
                view["job"] = me

        try:
            is_mine = yield Statement(
                "broker/transport/consuming/claims.sql: claim",
                when=lambda view: view["message"] == "ready",
                locks=("message",),
                skips=True,
                run=claim,
                commits=True,
                advisory=frozenset({me}),
            )
        except Lost:
            return None
        if not is_mine:
            return ("works", (me,))
        yield from persisted(
            Statement(
                "jobs/running/executions_begin.sql ~ pgbeat.is_last_execution(j.id, r.id",
                locks=("job",),
                run=begin,
                commits=True,
            )
        )
        return ("waits", (me,))

    def persisted(statement: Statement) -> Steps:
        while True:
            try:
                return (yield statement)
            except Lost:
                continue

    def waits(me: str) -> Steps:
        """Asks for the event, again if the session is lost; then ends the attempt."""
        try:
            answer = yield from suspends()
        except Lost:
            return ("waits", (me,))
        if answer == "waits":
            return ("snoozes", (me,))

        def tell(view: View) -> None:
            view.memory["answers"] |= {answer}

        yield Statement("worker/steps.py: wait_for", run=tell, is_local=True)
        return ("ends", (me, (yield choice("(the task)", "returns", "fails"))))

    def suspends() -> Steps:
        def write(view: View) -> Any:
            view["wait"] = view["wait"] or "waits"
            return view["wait"]

        if bad != "unlocked":
            yield Statement(
                "database/migrations: pgbeat.suspend ~ pg_advisory_xact_lock_shared",
                locks=("key",),
                shares=True,
            )
        name = "database/migrations: pgbeat.suspend ~ own_n FOR UPDATE"
        answer = yield Statement(name, locks=("wait",), run=write)
        if answer == "waits":

            def look(view: View) -> Any:
                if view["event"]:
                    view["wait"] = "event"
                elif view.memory["is_late"]:
                    if bad == "timeouts_not_written":
                        return "timed out"
                    view["wait"] = "timed out"
                return view["wait"]

            name = "database/migrations: pgbeat.suspend ~ own.until <= clock_timestamp()"
            answer = yield Statement(name, run=look)
        yield COMMIT
        return answer

    def snoozes(me: str) -> Steps:
        """Writes the snooze, until it is written."""

        def snooze(view: View) -> bool:
            if view["job"] != me:
                return False
            is_over = view["wait"] != "waits" and bad != "snooze_looks_for_no_event"
            view["job"] = "due" if is_over else "scheduled"
            return True

        def delete(view: View) -> None:
            view["message"] = None

        try:
            name = "jobs/states/endings.sql: undecided ~ FOR NO KEY UPDATE"
            yield Statement(name, locks=("job",))
            is_last = yield Statement(
                "database/migrations: pgbeat.wake_if_over ~ s.finished_at IS NOT NULL", run=snooze
            )
            if is_last:
                name = "jobs/flow/lifecycle.py: _keep_snoozed ~ messages.delete"
                yield Statement(name, locks=("message",), run=delete)
            yield COMMIT
        except Lost:
            return ("snoozes", (me,))
        return ("works", (me,))

    def ends(me: str, how: str) -> Steps:
        """Ends the job, or has it tried again."""

        def end(view: View) -> None:
            is_mine = view["message"] == me
            if how == "fails" and not view.memory["is_retried"]:
                if view["job"] == me:
                    view["job"], view["message"] = "pending", "ready"
                    view.memory["is_retried"] = True
                return
            view["job"] = None
            if is_mine:
                view["message"] = None

        yield from persisted(
            Statement(
                "jobs/running/executions_go_on.sql ~ DELETE FROM pgbeat.unfinished_jobs j",
                locks=("job", "message"),
                run=end,
                commits=True,
            )
        )
        return ("works", (me,))

    def emits() -> Steps:
        """Emits the event, in a transaction that it commits in the end."""

        def happen(view: View) -> None:
            view["event"] = True

        def end_waits(view: View) -> bool:
            if "wait" not in view.locked or view["wait"] != "waits":
                return False
            view["wait"] = "event"
            return True

        def wake(view: View) -> None:
            if view["job"] == "scheduled":
                view["job"] = "due"

        if bad != "unlocked":
            name = "database/migrations: pgbeat.emit ~ pg_advisory_xact_lock("
            yield Statement(name, locks=("key",))
        name = "database/migrations: pgbeat.emit ~ INSERT INTO pgbeat.events"
        yield Statement(name, locks=("event",), run=happen)
        has_ended = yield Statement(
            "database/migrations: pgbeat.emit ~ WITH ended AS ( UPDATE pgbeat.steps s",
            locks=lambda view: ["wait"] if view["wait"] == "waits" else [],
            run=end_waits,
        )
        if has_ended:
            if bad != "jobs_chosen_by_a_snapshot":
                name = "database/migrations: pgbeat.emit ~ FOR NO KEY UPDATE"
                yield Statement(name, locks=("job",))
            yield Statement(
                "database/migrations: pgbeat.emit ~ UPDATE pgbeat.unfinished_jobs j SET run_at",
                locks=lambda view: ["job"] if view["job"] == "scheduled" else [],
                run=wake,
            )
        yield COMMIT

    def passes() -> Steps:
        """Lets the time pass until the wait times out, or the wait has none."""

        def be_late(view: View) -> None:
            view.memory["is_late"] = True

        if (yield choice("(the timeout)", "passes", "there is none")) == "passes":
            yield Statement("(the clock)", run=be_late, is_local=True)

    def sends() -> Steps:
        """Sends the job's message when it is due."""

        def is_due(view: View) -> bool:
            return view["job"] == "due" or (
                view["job"] == "scheduled" and view.memory["is_late"] is True
            )

        def send(view: View) -> None:
            if "job" in view.locked and is_due(view):
                view["job"], view["message"] = "pending", "ready"

        yield Statement(
            "jobs/states/due.sql: take ~ FOR UPDATE SKIP LOCKED",
            when=is_due,
            locks=lambda view: ["job"] if is_due(view) else [],
            skips=True,
            run=send,
            commits=True,
        )
        return ("sends", ())

    def releases() -> Steps:
        """Requeues what a dead consumer had."""

        def is_dead(view: View) -> bool:
            return view["message"] == "worker 1" and "worker 1" not in view.alive

        def release(view: View) -> None:
            if "message" in view.locked and view["message"] == "worker 1":
                view["message"] = "ready"

        yield Statement(
            "broker/transport/consuming/consumers.sql: requeue ~ FOR UPDATE OF m SKIP LOCKED",
            when=is_dead,
            locks=lambda view: ["message"] if is_dead(view) else [],
            skips=True,
            run=release,
            commits=True,
        )
        return ("releases", ())

    programs = (works, waits, snoozes, ends, emits, passes, sends, releases)
    return Model(
        programs={program.__name__: program for program in programs},
        processes={
            "worker 1": Process("works", ("worker 1",)),
            "worker 2": Process("works", ("worker 2",)),
            "program": Process("emits"),
            "clock": Process("passes"),
            "beat": Process("sends"),
            "releaser": Process("releases"),
        },
        rows={"message": "ready", "job": "pending"},
        memory={"answers": frozenset(), "is_late": False, "is_retried": False},
        always={"all attempts get the same answer": lambda view: len(view.memory["answers"]) <= 1},
        at_rest={
            "no job waits for an event that is there": lambda view: (
                view["job"] is None or not (view["event"] or view.memory["is_late"])
            )
        },
        kills=(("worker 1",), ("program",)),
        cuts=("worker 1", "program"),
    )
