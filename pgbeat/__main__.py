"""The console script, and `python -m pgbeat`; Ctrl-C ends it quietly from its first import on."""

import os
import signal
from typing import Any


def main() -> None:
    """Imports the command line, which takes a moment, and runs it."""
    # An exception in the middle of an import would show its traceback, or be lost.
    follows = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if follows:
        signal.signal(signal.SIGINT, _end)
    from pgbeat import cli

    if follows:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


def _end(*args: Any) -> None:
    os._exit(130)  # as shells say of a program that Ctrl-C has ended


if __name__ == "__main__":
    main()
