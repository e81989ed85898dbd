"""How single keys are read from a terminal."""

import os
import pty
import termios
import time
from collections.abc import Iterator

import pytest

from pgbeat.cli.terminal.keys import keys


@pytest.fixture
def pressed(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Makes standard input a terminal; returns the file of who types."""
    typing, terminal = pty.openpty()
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield typing
        os.close(typing)


def test_a_key_is_read_without_return_and_the_terminal_is_as_before(pressed: int) -> None:
    before = termios.tcgetattr(pressed)
    with keys() as wait:
        assert wait(0) == ""
        os.write(pressed, b"q")
        assert wait(10) == "q"
        os.write(pressed, b"\x1b[A")
        assert wait(10) == "\x1b[A", "an arrow is one key"
        assert termios.tcgetattr(pressed) != before
    assert termios.tcgetattr(pressed) == before


def test_without_a_terminal_it_only_waits() -> None:
    begun = time.monotonic()
    with keys() as wait:
        assert wait(0.02) == ""
    assert time.monotonic() - begun >= 0.02
