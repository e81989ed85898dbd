"""Explores every state that a model can reach, the nearest first, until an invariant fails."""

from collections import deque
from typing import NamedTuple

from tests.models.postgres import Model

#: What fails where each of several processes waits for another's lock.
DEADLOCK = "nobody waits for ever"
Key = tuple[int, ...]


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
    before: dict[Key, tuple[Key, str] | None] = {start.key: None}
    todo = deque([start])
    transitions = 0
    names: set[str] = set()

    def verdict(broken: str | None, key: Key) -> Verdict:
        return Verdict(len(before), transitions, broken, _trace(before, key), frozenset(names))

    while todo:
        state = todo.popleft()
        key = state.key
        moves, is_stuck = model.moves(state)
        failed = [DEADLOCK] if is_stuck else []
        failed += model.failed(state, is_at_rest=all(move.is_fault for move in moves))
        broken = next((name for name in failed if only in (None, name)), None)
        if broken is not None:
            return verdict(broken, key)
        transitions += len(moves)
        for label, after, name, _ in moves:
            if name:
                names.add(name)
            if after.key not in before:
                before[after.key] = (key, label)
                todo.append(after)
    return verdict(None, start.key)


def _trace(before: dict[Key, tuple[Key, str] | None], key: Key) -> list[str]:
    trace: list[str] = []
    while (step := before[key]) is not None:
        key, label = step
        trace.append(label)
    return trace[::-1]
