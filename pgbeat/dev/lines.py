"""Shows the lines of several processes as one log."""

import sys
import threading
import time

import click

#: Colours of the names, in turn.
_COLOURS = ("cyan", "green", "magenta", "blue", "yellow", "red")
_WIDTH = 8


class Log:
    """Prints lines, each with the time and the process that wrote it, one at a time."""

    def __init__(self, *, has_colours: bool) -> None:
        self.has_colours = has_colours
        self._colours: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, name: str, text: str) -> None:
        """Prints the lines of a text."""
        with self._lock:
            colour = self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])
            prefix = f"{time.strftime('%H:%M:%S')} {name:<{_WIDTH}}"
            for line in text.splitlines():
                start = click.style(f"{prefix} │", fg=colour)
                click.echo(f"{start} {line}".rstrip(), color=self.has_colours)
            sys.stdout.flush()
