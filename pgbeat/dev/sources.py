"""Watches the source files of a project."""

from collections.abc import Callable, Sequence
from pathlib import Path

#: Calls what it is given with the files that changed, whenever some do.
Watch = Callable[[Callable[[Sequence[Path]], None]], None]
#: Milliseconds of quiet after which changes count as complete, and between two looks.
_QUIET, _STEP = 50, 25


def watch(folders: Sequence[Path]) -> Watch:
    """Returns what watches the Python files in these folders, for `DevSession.run`.

    Raises `ImportError` if watchfiles is not installed.
    """
    import watchfiles

    def run(note: Callable[[Sequence[Path]], None]) -> None:
        seen = watchfiles.watch(
            *folders,
            watch_filter=watchfiles.PythonFilter(),
            debounce=10 * _QUIET,
            step=_STEP,
            raise_interrupt=False,
        )
        for changes in seen:
            note(sorted(Path(path) for _, path in changes))

    return run
