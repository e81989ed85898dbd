"""A chord's end: its parts return, one of them twice, while its sender sets its size.

The transaction that counts the last part, or sets the size after it, sends the body. Left out:
chords that fail or are sent again, parts that are added, and bodies that can't be sent.
"""

from collections.abc import Generator
from typing import Any, NamedTuple

from tests.models.postgres import COMMIT, Lost, Model, Process, Statement, View

MEMBERS = ("a", "b", "c")
VARIANTS = {
    "parts_counted_twice": "the body is sent once at most, with each value",
    "body_sent_before_the_commit": "the body is sent once at most, with each value",
    "late_part_kept": "an ended chord has no parts",
    "counted_by_the_parts_there_are": "the body is sent",
    "body_not_kept": "the body is sent",
}
Steps = Generator[Statement, Any, Any]


class Chord(NamedTuple):
    size: int | None = None
    done: int = 0
    ended: bool = False


def model(bad: str | None = None) -> Model:
    """Returns the protocol, or a variant of it, for which two parts suffice."""
    members = MEMBERS[:2] if bad else MEMBERS

    def returns(member: str) -> Steps:
        try:
            yield from return_part(member)
        except Lost:
            return ("returns", (member,))  # `Store.atomically` tries again
        return None

    def return_part(member: str) -> Steps:
        key = f"part {member}"

        def returned(view: View) -> Chord | None:
            begun = view.subquery()["chord"]
            if begun is not None and begun.ended:
                return None
            if view[key] and bad != "parts_counted_twice":
                return None
            view[key] = True
            chord = view["chord"] or Chord()
            if chord.ended:
                return None
            view["chord"] = chord = chord._replace(done=chord.done + 1)
            if bad == "counted_by_the_parts_there_are":
                chord = chord._replace(done=len(view.subquery().keys("part ")))
            return chord

        def drops(view: View) -> None:
            if view["chord"].ended:
                view[key] = None

        chord = yield Statement(
            "results/statements.sql: return_part ~ WHERE NOT c.ended RETURNING done, size + added",
            locks=lambda view: [key, "chord"],
            run=returned,
        )
        if chord is None:
            if bad != "late_part_kept":
                yield Statement("results/statements.py: DROP_LATE_PART", run=drops)
        elif chord.done == chord.size:
            yield from ends()
        elif chord.size is None and chord.done == 1 and bad != "body_not_kept":
            yield Statement(
                "results/statements.py: KEEP_BODY",
                locks=("body",),
                run=lambda view: view.__setitem__("body", "kept"),
            )
        yield COMMIT

    def ends() -> Steps:
        def end(view: View) -> tuple[str, ...]:
            view["chord"] = view["chord"]._replace(ended=True)
            view["body"] = None
            parts = tuple(view.keys("part "))
            for part in parts:
                view[part] = None
            return parts

        def sends(view: View) -> None:
            if bad == "body_sent_before_the_commit":
                view.memory["sent"] += (parts,)
            else:
                view["sent"] = (*(view["sent"] or ()), parts)

        parts = yield Statement("results/statements.py: END_CHORD", run=end)
        yield Statement("results/chords.py: _end ~ body.delay(values)", run=sends)

    def sizes() -> Steps:
        """Says how many parts there are."""

        def size(view: View) -> Chord | None:
            chord = view["chord"] or Chord()
            if chord.ended:
                return None
            view["chord"] = chord = chord._replace(size=len(members))
            return chord

        try:
            chord = yield Statement(
                "results/statements.py: SET_CHORD_SIZE ~ WHERE NOT c.ended",
                locks=("chord",),
                run=size,
            )
            if chord is not None and chord.done >= chord.size:
                body = yield Statement(
                    "results/statements.py: KEPT_BODY", run=lambda view: view["body"]
                )
                if body:
                    yield from ends()
            yield COMMIT
        except Lost:
            return ("sizes", ())
        return None

    def sent(view: View) -> tuple[Any, ...]:
        return (*(view["sent"] or ()), *view.memory["sent"])

    return Model(
        programs={"returns": returns, "sizes": sizes},
        processes={
            **{f"member {name}": Process("returns", (name,)) for name in members},
            "member a again": Process("returns", ("a",)),
            "sender": Process("sizes"),
        },
        rows={},
        memory={"sent": ()},
        always={
            "the body is sent once at most, with each value": lambda view: (
                sent(view) in ((), (tuple(f"part {name}" for name in members),))
            ),
            "an ended chord has no parts": lambda view: (
                not (view["chord"] and view["chord"].ended and view.keys("part "))
            ),
        },
        at_rest={"the body is sent": lambda view: len(sent(view)) == 1},
        kills=(("member a again",),),
        cuts=("member a", "sender"),
    )
