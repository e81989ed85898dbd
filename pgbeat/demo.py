"""`pgbeat demo`: an embedded Postgres, one worker and two beats at work, seen tick by tick."""

import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

_DATABASE = "pgbeat"
_LOCK_KEY = 1050
#: Seconds between two looks at the database.
_PAUSE = 0.25
#: Seconds that a process may take to end when it is asked to.
_PATIENCE = 10.0
_STYLES = {
    "launched": "green",
    "skipped": "yellow",
    "failed": "red",
    "completed": "green",
    "running": "cyan",
}


def run(
    seconds: float | None = None, folder: Path | None = None, console: Console | None = None
) -> int:
    """Runs the demo for so many seconds, or until it is interrupted; the exit status.

    With `seconds`, 0 only if launched, skipped and failed ticks and a completed job were seen.
    Without, 0 when it was interrupted. Nothing that it started outlives it. Raises `PgbeatError`
    where it can't begin.
    """
    console = console or Console()
    show: Show = LiveTable(console) if console.is_terminal else Lines(console)
    interrupted = False
    try:
        with _interruptible(), ExitStack() as stack:
            watch = _begin(stack, show, folder, seconds)
            stack.enter_context(show)
            deadline = None if seconds is None else time.monotonic() + seconds
            while deadline is None or time.monotonic() < deadline:
                watch.look()
                show.update(watch)
                if not watch.alive():
                    break
                time.sleep(_PAUSE)
            else:
                watch.look()
                show.update(watch)
    except KeyboardInterrupt:
        interrupted = True
    if "watch" not in locals():
        return 0 if interrupted and seconds is None else 1
    return _conclude(show, watch, interrupted=interrupted, ended=seconds is not None)
