"""What runs in a subprocess: `python -m durable.child COMMAND`. Figures are JSON on stdout."""

import json
import random
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from durable.common import spec

program: Any = import_module(spec.settings["program"])


def begin(task: str) -> Callable[[int], None]:
    """Returns a command that starts the task of this name with its argument."""
    return lambda count: program.start(task, count)


def wait(count: int) -> None:
    """Starts so many tasks that wait for an event."""
    for number in range(count):
        program.start("waits", number)


def emit(count: int, per_s: int) -> None:
    """Emits the events at a steady pace, each within its time at random."""
    began = time.time()
    for number in range(count):
        time.sleep(max(0.0, began + (number + random.random()) / per_s - time.time()))
        program.emit(f"event-{number}", time.time())


def work() -> None:
    """Runs tasks until it is killed."""
    program.work()
    print("ready", flush=True)
    sys.stdin.read()


COMMANDS: dict[str, Callable[..., Any]] = {
    "work": work,
    "steps": begin("steps"),
    "rows": begin("rows"),
    "bare": begin("bare"),
    "wait": wait,
    "emit": emit,
    "sleepers": lambda count: program.sleepers(count),
    "idle": lambda: print(json.dumps(program.idle()), flush=True),
}

if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    COMMANDS[command](*map(int, arguments))
