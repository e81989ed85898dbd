"""Explores every state that a model can reach, the nearest first, until an invariant fails."""

from collections import deque
from typing import NamedTuple

from tests.models.postgres import Model, State

#: What fails where each of several processes waits for another's lock.
DEADLOCK = "nobody waits for ever"


class Verdict(NamedTuple):
    """What was explored, and the invariant that failed, with the shortest way there."""

    states: int
    transitions: int
    broken: str | None
    trace: list[str]
    #: The statements that were executed.
    names: frozenset[str]


def check(model: Model, only: str | None = None) -> Verdict:
    """Checks the model's invariants in each state, and what must hold where it comes to rest.

    With `only`, looks for a state that breaks this invariant, whatever becomes of the others.
    """
    start = model.start()
    before: dict[State, tuple[State, str] | None] = {start: None}
    todo = deque([start])
    transitions = 0
    names: set[str] = set()

    def verdict(broken: str | None, state: State) -> Verdict:
        return Verdict(len(before), transitions, broken, _trace(before, state), frozenset(names))

    while todo:
        state = todo.popleft()
        view = model.view(state)
        moves, is_stuck = model.moves(state)
        held = dict(model.always)
        if all(move.is_fault for move in moves):
            held |= model.at_rest
        failed = [DEADLOCK] if is_stuck else []
        failed += [name for name, holds in held.items() if not holds(view)]
        broken = next((name for name in failed if only in (None, name)), None)
        if broken is not None:
            return verdict(broken, state)
        for move in moves:
            transitions += 1
            names |= {move.name} if move.name else set()
            if move.state not in before:
                before[move.state] = (state, move.label)
                todo.append(move.state)
    return verdict(None, start)


def _trace(before: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    trace: list[str] = []
    while (step := before[state]) is not None:
        state, label = step
        trace.append(label)
    return trace[::-1]
