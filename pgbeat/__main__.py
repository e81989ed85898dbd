"""The console script, and `python -m pgbeat`; Ctrl-C ends it quietly from its first import on."""

import os
import signal
import sys
from typing import Any

from pgbeat.processes import probe


def main() -> None:
    """Imports the command line, which takes a moment, and runs it."""
    # An exception in the middle of an import would show its traceback, or be lost.
    follows = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if follows:
        signal.signal(signal.SIGINT, _end)
    _answer(probe.quick(sys.argv[1:]))
    from pgbeat import cli

    if follows:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


def _answer(result: probe.ProbeResult | None) -> None:
    """Answers a probe and ends, before all that commands need is imported."""
    if result is not None:
        print(result.detail, file=sys.stdout if result.ok else sys.stderr)
        sys.exit(0 if result.ok else 1)


def _end(*args: Any) -> None:
    os._exit(130)  # as shells say of a program that Ctrl-C has ended


if __name__ == "__main__":
    main()
