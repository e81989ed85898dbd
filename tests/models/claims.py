"""Claims: three consumers, one of which lives by a lease, and the release of what the dead have.

A consumer is alive while its session holds a lock, or until its lease runs out, which it may learn
late. Left out: queues, priorities, several messages, delivery limits, and the messages of jobs,
which the model of `finish` has.
"""

from collections.abc import Generator
from typing import Any

from tests.models.postgres import COMMIT, Model, Process, Statement, View

MESSAGES = ("message",)
#: It lives by a lease.
LEASED = "1"
VARIANTS = {
    "claim_unchecked": "a live consumer keeps its claims",
    "registered_in_two_statements": "a live consumer keeps its claims",
    "lease_unlocked": "a claim is a registered consumer's",
    "acknowledged_whoever_has_it": "a message is acknowledged by the consumer that has it",
    "acknowledged_first": "each message is executed",
    "dead_not_released": "no message is left",
}
Steps = Generator[Statement, Any, Any]


def model(bad: str | None = None) -> Model:
    """Returns the protocol, or a variant of it."""

    def lives(view: View, consumer: str) -> bool:
        if consumer == LEASED:
            return not view.memory["lease is over"]
        return f"consumer {consumer}" in view.alive

    def take_from(view: View, message: str) -> None:
        """Notes whether a live consumer loses a claim."""
        owner = view.newest.get(message)
        if owner not in (None, "ready") and lives(view, owner):
            view["robbed"] = True

    def registers(me: str) -> Steps:
        own = frozenset({f"consumer {me}"})
        register = Statement(
            "broker/transport/consuming/consumers.sql: register ~ pg_try_advisory_lock",
            run=lambda view: view.__setitem__(f"consumer {me}", "registered"),
            commits=True,
        )
        if bad == "registered_in_two_statements":
            yield register
            yield Statement("(a second statement)", advisory=own, commits=True)
        else:
            yield register._replace(advisory=own)
        return ("consumes", (me,))

    def consumes(me: str) -> Steps:
        def ready(view: View) -> list[str]:
            return [message for message in MESSAGES if view[message] == "ready"]

        def claim(view: View) -> str | None:
            for message in sorted(view.locked):
                if view[message] == "ready" or bad == "claim_unchecked":
                    take_from(view, message)
                    view[message] = me
                    return message
            return None

        def is_registered(view: View) -> bool:
            return view[f"consumer {me}"] is not None and (me != LEASED or lives(view, me))

        if me == LEASED:
            yield Statement("(there may be messages)", when=lambda view: bool(ready(view)))
            is_alive = yield Statement(
                "broker/transport/consuming/claims.sql: leased ~ FOR KEY SHARE",
                locks=() if bad == "lease_unlocked" else (f"consumer {me}",),
                shares=True,
                run=is_registered,
            )
            if not is_alive:
                yield COMMIT
                return None
        message = yield Statement(
            "broker/transport/consuming/claims.sql: claim ~ WHERE EXISTS (SELECT FROM me)",
            when=None if me == LEASED else lambda view: is_registered(view) and bool(ready(view)),
            locks=ready,
            skips=True,
            run=claim,
            commits=True,
        )
        return ("executes", (me, message)) if message else ("consumes", (me,))

    def executes(me: str, message: str) -> Steps:
        def run(view: View) -> None:
            view.memory[message] = True

        def acknowledge(view: View) -> None:
            if view[message] == me or bad == "acknowledged_whoever_has_it":
                if view[message] != me:
                    view["acknowledged by another"] = True
                view[message] = None

        ack = Statement(
            "broker/message_ends.sql: ack ~ claimed_by IS NOT DISTINCT FROM $2",
            locks=(message,),
            run=acknowledge,
            commits=True,
        )
        execute = Statement("(the task runs)", run=run, is_local=True)
        yield from (ack, execute) if bad == "acknowledged_first" else (execute, ack)
        return ("consumes", (me,))

    def releases() -> Steps:
        """Requeues what dead and unknown consumers have."""

        def is_dead(view: View, consumer: str) -> bool:
            return view[f"consumer {consumer}"] is not None and not lives(view, consumer)

        def dead(view: View) -> tuple[str, ...]:
            unknown = {view[m] for m in MESSAGES} - {None, "ready"}
            unknown = {c for c in unknown if view[f"consumer {c}"] is None}
            registered = [key[9:] for key in view.keys("consumer ")]
            return tuple(sorted({*unknown, *(c for c in registered if is_dead(view, c))}))

        def doom(view: View) -> tuple[str, ...]:
            gone = [c for c in found if view.newest.get(f"consumer {c}") is None]
            return (
                *gone,
                *(c for c in found if f"consumer {c}" in view.locked and is_dead(view, c)),
            )

        def theirs(view: View) -> list[str]:
            return [message for message in MESSAGES if view[message] in doomed]

        def requeue(view: View) -> None:
            for message in view.locked:
                if view[message] in doomed:
                    take_from(view, message)
                    view[message] = "ready"

        def forget(view: View) -> None:
            for consumer in doomed:
                if not any(view[message] == consumer for message in MESSAGES):
                    view[f"consumer {consumer}"] = None

        found = yield Statement(
            "broker/transport/consuming/consumers.sql: due_maintenance",
            when=lambda view: bad != "dead_not_released" and bool(dead(view)),
            run=dead,
        )
        doomed = yield Statement(
            "broker/transport/consuming/consumers.sql: doomed ~ FOR UPDATE SKIP LOCKED",
            locks=lambda view: [f"consumer {c}" for c in found if is_dead(view, c)],
            skips=True,
            run=doom,
        )
        if doomed:
            yield Statement(
                "broker/transport/consuming/consumers.sql: requeue ~ FOR UPDATE OF m SKIP LOCKED",
                locks=theirs,
                skips=True,
                run=requeue,
            )
            yield Statement(
                "broker/transport/consuming/consumers.py: _DELETE ~ NOT EXISTS", run=forget
            )
        yield COMMIT
        return ("releases", ())

    def expires() -> Steps:
        """Lets the lease run out."""
        yield Statement(
            "(the lease runs out)",
            run=lambda view: view.memory.update({"lease is over": True}),
            is_local=True,
        )

    programs = (registers, consumes, executes, releases, expires)
    return Model(
        programs={program.__name__: program for program in programs},
        processes={
            "consumer 1": Process("consumes", (LEASED,)),
            "consumer 2": Process("registers", ("2",)),
            "consumer 3": Process("consumes", ("3",), advisory=frozenset({"consumer 3"})),
            "releaser": Process("releases"),
            "clock": Process("expires"),
        },
        rows={
            **dict.fromkeys(MESSAGES, "ready"),
            **dict.fromkeys(("consumer 1", "consumer 3"), "registered"),
        },
        memory={"lease is over": False, **dict.fromkeys(MESSAGES, False)},
        always={
            "a live consumer keeps its claims": lambda view: view["robbed"] is None,
            "a claim is a registered consumer's": lambda view: all(
                view[m] in (None, "ready") or view[f"consumer {view[m]}"] for m in MESSAGES
            ),
            "a message is acknowledged by the consumer that has it": lambda view: (
                view["acknowledged by another"] is None
            ),
        },
        at_rest={
            "each message is executed": lambda view: all(view.memory[m] for m in MESSAGES),
            "no message is left": lambda view: all(view[m] is None for m in MESSAGES),
        },
        kills=(("consumer 2",),),
        cuts=("consumer 2",),
    )
