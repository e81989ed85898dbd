"""Suggests the known name that was probably meant by an unknown one."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Returns the known name that is spelled most like the word, in whatever case.

    `cutoff` (0 to 1) is how similar it must be, as difflib measures it.
    """
    alike = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), alike, n=1, cutoff=cutoff)
    return alike[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns `did you mean 'name'?` with the nearest known name; "" where none is near."""
    found = nearest(word, known)
    return f"did you mean {found!r}?" if found is not None else ""


def nearest_task(task: str, known: Collection[str]) -> str | None:
    """Returns the known task that was probably meant.

    That is one with the same last part, as after a move to another module, else one that is spelled
    alike.
    """
    own = [name for name in known if not name.startswith("celery.")]
    last = task.rpartition(".")[2]
    same_end = [name for name in own if name.rpartition(".")[2] == last]
    return nearest(task, same_end, cutoff=0) or nearest(task, own)
