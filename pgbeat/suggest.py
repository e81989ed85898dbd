"""Suggests the known name that was probably meant by an unknown one."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches

#: Words that other tools use, and ours that may be meant, the likeliest first.
_ALIASES = {
    "ls": ("list", "show"),
    "rm": ("remove", "delete", "drop", "clear", "revoke"),
    "del": ("remove", "delete", "drop", "clear", "revoke"),
    "delete": ("remove", "drop", "clear", "revoke"),
    "remove": ("delete", "drop", "clear", "revoke"),
    "drop": ("remove", "delete"),
    "kill": ("cancel", "shutdown"),
    "abort": ("cancel",),
    "terminate": ("cancel", "shutdown"),
    "revoke": ("cancel",),
    "stop": ("pause", "shutdown", "cancel", "disable"),
    "hold": ("pause",),
    "unpause": ("resume",),
    "continue": ("resume",),
    "start": ("resume", "run", "trigger", "enable"),
    "run": ("trigger",),
    "submit": ("run",),
    "rerun": ("retry", "trigger"),
    "requeue": ("retry",),
    "create": ("add", "set", "run"),
    "new": ("add", "set", "run"),
    "make": ("add", "set", "run"),
    "edit": ("update", "set"),
    "change": ("update", "set"),
    "modify": ("update", "set"),
    "get": ("show", "status"),
    "info": ("show", "status"),
    "describe": ("show", "status"),
    "show": ("status", "list"),
    "add": ("create", "set"),
    "status": ("show",),
    "watch": ("tail", "top"),
    "follow": ("tail",),
    "ps": ("workers", "top"),
    "serve": ("web",),
    "count": ("limit",),
    "number": ("limit",),
    "max": ("limit",),
    "force": ("yes",),
    "name": ("task", "schedule"),
    "interval": ("every",),
    "tz": ("timezone",),
    "database": ("url",),
    "dsn": ("url",),
}


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Returns the known name that another tool calls so, or that is spelled most like the word.

    In whatever case, and for options without their dashes. `cutoff` (0 to 1) is how similar it must
    be, as difflib measures it.
    """
    plain = {name.lower().lstrip("-"): name for name in known}
    meant = word.lower().lstrip("-")
    if meant in _ALIASES and meant not in plain:
        for alias in _ALIASES[meant]:
            if alias in plain:
                return plain[alias]
        cutoff = max(cutoff, 0.8)  # it is hardly misspelled
    close = get_close_matches(meant, plain, n=1, cutoff=cutoff)
    return plain[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns `did you mean 'name'?` with the nearest known name; "" where none is near."""
    name = nearest(word, known)
    return f"did you mean {name!r}?" if name is not None else ""


def nearest_task(task: str, known: Collection[str]) -> str | None:
    """Returns the known task that was probably meant.

    That is one with the same last part, as after a move to another module, else one that is spelled
    alike.
    """
    of_app = [name for name in known if not name.startswith("celery.")]
    last = task.rpartition(".")[2]
    same_end = [name for name in of_app if name.rpartition(".")[2] == last]
    return nearest(task, same_end, cutoff=0) or nearest(task, of_app)
