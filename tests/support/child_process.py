"""Runs another process with kombu in it, which does what a test says, line by line."""

import atexit
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from kombu.transport.sqlalchemy import Channel as Stock

from tests.support.processes import ROOT

#: What a test's lines can name.
_NAMES = "from tests.support.kombu_connections import *\nimport time, signal, os, threading"


class Child:
    """The process. What is given by name to `do` is there under this name from then on."""

    _idle: ClassVar[list["Child"]] = []

    @classmethod
    @contextmanager
    def lent(cls) -> Iterator["Child"]:
        """Lends a process to one test: it takes a second to start, and is used again."""
        child = cls._idle.pop() if cls._idle else cls()
        yield child
        if child._is_busy:
            child.kill()
        elif child.is_alive:
            child.do("forget()")
            cls._idle.append(child)

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.child_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={key: value for key, value in os.environ.items() if not key.startswith("PGBEAT_")},
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._is_busy = False
        atexit.register(self.kill)

    def do(self, code: str, **values: Any) -> Any:
        """Runs code; the value of an expression, as JSON has it."""
        self.start(code, **values)
        return self.finish()

    def start(self, code: str, **values: Any) -> None:
        """Runs code, and does not wait for its end."""
        self._input.write(json.dumps([code, values]) + "\n")
        self._input.flush()
        self._is_busy = True

    def finish(self) -> Any:
        """Waits for the end of what was started; its value."""
        line = self._output.readline()
        if not line:
            raise AssertionError("the child has ended")
        answer, self._is_busy = json.loads(line), False
        if "error" in answer:
            raise AssertionError(f"in the child:\n{answer['error']}")
        return answer["value"]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Sends SIGKILL."""
        atexit.unregister(self.kill)
        self._process.kill()
        self._process.wait()
        self._input.close()
        self._output.close()


def main() -> None:
    """Reads code and values, prints what becomes of it."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything else prints is not an answer
    names: dict[str, Any] = {}

    def forget() -> None:
        """Closes what was opened, and forgets every name."""
        for value in list(names.values()):
            connection = getattr(value, "connection", value)
            if hasattr(connection, "release"):
                connection.release()
        while Stock._engines:
            Stock._engines.popitem()[1][0].dispose()
        names.clear()
        exec(_NAMES, names)  # noqa: S102
        names["forget"] = forget

    forget()
    for line in sys.stdin:
        code, values = json.loads(line)
        names.update(values)
        try:
            try:
                compiled = compile(code, "<test>", "eval")
            except SyntaxError:
                exec(code, names)  # noqa: S102
                answer: dict[str, Any] = {"value": None}
            else:
                answer = {"value": eval(compiled, names)}  # noqa: S307
        except Exception:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer, default=repr) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
