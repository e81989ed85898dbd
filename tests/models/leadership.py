"""Leader and tick: two beats decide two due times, and a person pauses or sets back the schedule.

A beat leads while its session has the lock, reads the schedule unlocked, and writes the tick, its
job, its message and the schedule's next time in that session: in one statement, or step by step.
The row's version, `xmin`, is a number here. Left out: conditions, catch-up, several schedules.
"""

from collections.abc import Generator
from typing import Any

from tests.models.postgres import COMMIT, Lost, Model, Process, Statement, View, choice

DUE = (1, 2)
VARIANTS = {
    "lock_on_another_connection": "only the leader commits",
    "version_unchecked": "a schedule that is paused launches nothing",
    "no_unique_constraint": "a due time has one tick",
    "jobs_of_known_ticks": "a tick has one job and one message",
    "advanced_in_another_transaction": "each due time is decided",
    "messages_before_the_commit": "a tick has one job and one message",
}
Steps = Generator[Statement, Any, tuple[str, tuple[Any, ...]] | None]


def model(bad: str | None = None) -> Model:
    """Returns the protocol, or a variant of it."""

    def is_current(view: View, version: int) -> bool:
        """Returns whether the schedule is locked as it was read."""
        is_locked = "schedule" in view.locked
        return is_locked and (bad == "version_unchecked" or view["schedule"][1] == version)

    def write_tick(view: View, due: int) -> bool:
        tick = view[f"tick {due}"] or 0
        if tick and bad != "no_unique_constraint":
            return False
        view[f"tick {due}"] = tick + 1
        return True

    def add(view: View, key: str) -> None:
        view[key] = view.newest.get(key, 0) + 1

    def send(view: View, key: str) -> None:
        if bad == "messages_before_the_commit":
            view.memory[key] += 1
        else:
            add(view, key)

    def advance(view: View, me: str, due: int) -> None:
        _, version, is_paused = view["schedule"]
        view["schedule"] = (due + 1, version + 1, is_paused)
        if f"{me} leads" not in view.alive:
            view["committed by another"] = True

    def launch(view: View, me: str, due: int, version: int) -> bool:
        if not is_current(view, version) or not write_tick(view, due):
            view.writes.clear()  # all or nothing
            return False
        add(view, f"job {due}")
        add(view, f"message {due}")
        advance(view, me, due)
        return True

    def is_due(view: View) -> bool:
        due, _, is_paused = view["schedule"]
        return due in DUE and not is_paused

    def stands_by(me: str) -> Steps:
        lead = Statement(
            "beat/leadership/leader.py: Leader._acquire",
            advisory=frozenset({"leads", f"{me} leads"}),
        )
        if bad == "lock_on_another_connection":
            lead = Statement(lead.name, when=lambda view: view.memory[f"{me} leads"])
        yield lead
        return ("leads", (me,))

    def leads(me: str) -> Steps:
        try:
            yield from decide(me)
        except Lost:
            return ("stands_by", (me,))
        return ("leads", (me,))

    def decide(me: str) -> Generator[Statement, Any, None]:
        due, version, _ = yield Statement(
            "beat/due.sql: due", when=is_due, run=lambda view: view["schedule"]
        )
        way = yield choice("beat/enqueuer.py: Enqueuer.commit", "plain", "step by step")
        if way == "plain":
            yield Statement(
                "beat/plain_launches.sql ~ FOR UPDATE OF s SKIP LOCKED",
                locks=("schedule", f"tick {due}"),
                skips=True,
                run=lambda view: launch(view, me, due, version),
                commits=True,
            )
            return
        is_locked = yield Statement(
            "beat/due.py: _LOCK ~ s.xmin::text::bigint = d.version FOR UPDATE OF s SKIP LOCKED",
            locks=("schedule",),
            skips=True,
            run=lambda view: is_current(view, version),
        )
        if is_locked and bad == "advanced_in_another_transaction":
            yield Statement("beat/due.sql: advance", run=lambda view: advance(view, me, due))
            yield COMMIT
        if is_locked:
            is_fresh = yield Statement(
                "schedules/ticks.sql: record ~ CONSTRAINT ticks_one_decision DO NOTHING",
                locks=(f"tick {due}",),
                run=lambda view: write_tick(view, due),
            )
            if is_fresh or bad == "jobs_of_known_ticks":
                yield Statement(
                    "beat/enqueuer.py: Enqueuer._write_jobs",
                    run=lambda view: add(view, f"job {due}"),
                )
                yield Statement(
                    "broker/publishing/publisher.py: TransactionPublisher.flush",
                    run=lambda view: send(view, f"message {due}"),
                )
            if bad != "advanced_in_another_transaction":
                yield Statement("beat/due.sql: advance", run=lambda view: advance(view, me, due))
        yield COMMIT

    def holds_the_lock(me: str) -> Steps:
        """Leads for a beat that writes over another connection."""
        yield Statement(
            "beat/leadership/leader.py: Leader._acquire",
            advisory=frozenset({"leads", f"{me} leads"}),
            run=lambda view: view.memory.update({f"{me} leads": True}),
        )
        yield Statement("(idle)", when=lambda view: False)
        return None

    def intervenes() -> Steps:
        what = yield choice("(a person decides)", "pause", "set back")

        def change(view: View) -> None:
            due, version, _ = view["schedule"]
            if what == "pause":
                view["schedule"] = (due, version + 1, True)
                view["ticks when paused"] = _ticks(view.newest)
            else:
                view["schedule"] = (1, version + 1, False)

        name = "schedules/control.py: pause" if what == "pause" else "schedules/writes.py: edit"
        yield Statement(name, locks=("schedule",), run=change, commits=True)
        return None

    processes = {
        "beat 1": Process("stands_by", ("beat 1",)),
        "beat 2": Process("stands_by", ("beat 2",)),
        "person": Process("intervenes"),
    }
    kills: tuple[tuple[str, ...], ...] = (("beat 1",),)
    cuts: tuple[str, ...] = ("beat 1",)
    if bad == "lock_on_another_connection":
        for beat in ("beat 1", "beat 2"):
            processes[f"lock of {beat}"] = Process("holds_the_lock", (beat,))
        kills, cuts = (), ("lock of beat 1",)

    def has_one_of_each(view: View) -> bool:
        messages = {
            due: (view[f"message {due}"] or 0) + view.memory[f"message {due}"] for due in DUE
        }
        return all(
            view[f"job {due}"] == view[f"tick {due}"]
            and view[f"tick {due}"] in (None, messages[due])
            for due in DUE
        )

    return Model(
        programs={
            "stands_by": stands_by,
            "leads": leads,
            "holds_the_lock": holds_the_lock,
            "intervenes": intervenes,
        },
        processes=processes,
        rows={"schedule": (1, 1, False)},
        memory={
            "beat 1 leads": False,
            "beat 2 leads": False,
            **{f"message {due}": 0 for due in DUE},  # in a broker elsewhere
        },
        always={
            "only the leader commits": lambda view: view["committed by another"] is None,
            "a schedule that is paused launches nothing": lambda view: (
                view["ticks when paused"] in (None, _ticks(view.newest))
            ),
            "a due time has one tick": lambda view: all(
                view[key] == 1 for key in view.keys("tick ")
            ),
            "a tick has one job and one message": has_one_of_each,
        },
        at_rest={
            "each due time is decided": lambda view: (
                view["schedule"][2] or len(view.keys("tick ")) == len(DUE)
            )
        },
        kills=kills,
        cuts=cuts,
        faults=2,
    )


def _ticks(rows: Any) -> int:
    return sum(value for key, value in rows.items() if key.startswith("tick "))
