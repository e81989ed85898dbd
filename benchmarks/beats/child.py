"""What runs in a subprocess: `python -m beats.child COMMAND`. Results are JSON lines on stdout."""

import json
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import signals
from celery.beat import Service
from celery.utils.imports import symbol_by_name

from beats.app import app, contender


def say(**values: Any) -> None:
    """Hands values to the parent."""
    print(json.dumps(values), flush=True)


def peak_mb() -> float:
    """The most memory that this process has held, in MB."""
    try:
        # getrusage would count what the parent held before exec.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def construct() -> Service:
    """A beat as `celery beat` makes it, its scheduler constructed."""
    service = Service(
        app, scheduler_cls=contender.scheduler, schedule_filename=app.conf.beat_schedule_filename
    )
    service.scheduler  # noqa: B018 - a cached property; reading it constructs the scheduler
    return service


def start() -> Any:
    """The scheduler of a beat that is about to enter its loop (RedBeat has its lock then)."""
    service = construct()
    signals.beat_init.send(sender=service)
    return service.scheduler


def idle(seconds: float = 3.0, most: int = 300) -> None:
    """Start-up, then passes with nothing due."""
    app.finalize()
    symbol_by_name(contender.scheduler)  # imports are not measured: some come with the app
    begun = time.perf_counter()
    scheduler = start()
    constructed = time.perf_counter()
    contender.run_pass(scheduler)
    say(
        startup_s=time.perf_counter() - begun, construct_s=constructed - begun, startup_mb=peak_mb()
    )
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or (len(times) < most and time.perf_counter() < end):
        before = time.perf_counter()
        contender.run_pass(scheduler)
        times.append((time.perf_counter() - before) * 1000)
    say(idle_ms=statistics.median(times), idle_passes=len(times), peak_mb=peak_mb())


def launch() -> None:
    """Constructs, waits for a line on stdin, then runs beat's loop until killed."""
    scheduler = start()
    say(ready=True)
    sys.stdin.readline()
    while True:
        interval = scheduler.tick()
        if interval and interval > 0:
            time.sleep(interval)
            if scheduler.should_sync():
                scheduler._do_sync()


def change(repeats: int, longest: float = 5.0) -> None:
    """Changes schedules under a running beat, and times each until its message is there."""
    queue = contender.queue()
    contender.warm()
    queue.count()
    for index in range(1, repeats + 1):
        # At a moment that has nothing to do with beat's loop.
        time.sleep(random.uniform(0.2, longest))
        queue.purge()
        before = time.perf_counter()
        contender.make_due(index)
        while not queue.count():
            time.sleep(0.001)
        say(change_ms=(time.perf_counter() - before) * 1000)


def lock_timeout() -> None:
    """RedBeat's lock: how long a dead leader holds it."""
    say(lock_timeout_s=float(construct().scheduler.lock_timeout))


COMMANDS: dict[str, Callable[..., None]] = {
    "migrate": contender.migrate,
    "seed": contender.seed,
    "idle": idle,
    "launch": launch,
    "change": change,
    "lock-timeout": lock_timeout,
}

if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    COMMANDS[command](*map(int, arguments))
