"""The measures: each takes a contender, fills its queue, runs real workers, returns figures."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from beats.measures import Figures, micros, percentiles
from beats.processes import ProcessError, last_words, wait_until
from usage import Usage

from brokers.contenders import Contender
from brokers.executions import Execution, Executions
from brokers.processes import Workers
from brokers.spec import Spec

#: Limits in seconds: a worker's start until its first task, a drain, publishing.
START_LIMIT = 60.0
DRAIN_LIMIT = 30.0
PUBLISH_LIMIT = 600.0

#: Seconds without a task, while messages wait, that are called a pause.
PAUSE = 0.2
#: A worker as measured by default.
PREFORK = ("prefork", 2)


@dataclass(frozen=True)
class Bench:
    """What every measure needs: the process table and a way to say how it goes."""

    processes: Workers
    say: Callable[[str], None]

    def child(self, spec: Spec, command: str, *arguments: float) -> Figures:
        """Runs a command of `brokers.child` and returns what it said."""
        said, in_time = self.processes.run(
            spec.within("child"), command, *arguments, limit=PUBLISH_LIMIT
        )
        if not in_time:
            raise ProcessError(f"{command} took more than {PUBLISH_LIMIT:.0f} s")
        return said[0] if said else {}

    def fill(self, contender: Contender, waiting: int) -> None:
        """Leaves `waiting` messages in an empty queue."""
        contender.reset()
        self.child(contender.spec, "send", 1)
        contender.learn()
        contender.copy(waiting - 1)
        contender.settle()

    @contextmanager
    def workers(
        self, contender: Contender, pool: str, concurrency: int, count: int = 1
    ) -> Iterator["Crew"]:
        """Real workers; on entry they have not begun, at the end they are killed."""
        executions = Executions(contender.spec.executions)
        names = [f"worker-{index}" for index in range(count)]
        processes = [
            self.processes.worker(contender.spec, pool, concurrency, name) for name in names
        ]
        try:
            yield Crew(contender.spec, names, processes, executions)
        finally:
            for process in processes:
                self.processes.kill(process)

    @contextmanager
    def beat(self, contender: Contender) -> Iterator[int]:
        """Yields the pid of a beat of pgbeat's."""
        process = self.processes.celery(
            contender.spec.within("beat"),
            "-A",
            "brokers.app",
            "beat",
            "-S",
            "pgbeat.Scheduler",
            "-l",
            "ERROR",
            "--pidfile=",
        )
        try:
            yield process.pid
        finally:
            self.processes.kill(process)


@dataclass(frozen=True)
class Crew:
    """Workers that run, and what they have done."""

    spec: Spec
    names: list[str]
    processes: list[subprocess.Popen[str]]
    executions: Executions

    def wait(self, count: int, limit: float, pause: float = 0.05) -> bool:
        """Whether `count` tasks had run after `limit` seconds; raises when a worker has ended."""

        def done() -> bool:
            for name, process in zip(self.names, self.processes, strict=True):
                if process.poll() is not None:
                    raise ProcessError(last_words(self.spec.within(name)) or "the worker ended")
            return self.executions.count() >= count

        return wait_until(done, limit, pause)

    def wait_for_first(self) -> None:
        """Waits until a task has run."""
        if not self.wait(1, START_LIMIT, pause=0.002):
            words = last_words(self.spec.within(self.names[0]))
            raise ProcessError(words or f"no task ran within {START_LIMIT:.0f} s")

    def usage(self) -> Usage:
        """The CPU time that all use from now on."""
        return Usage(*(process.pid for process in self.processes))


def publish(bench: Bench, contender: Contender, tasks: int, in_bulk: int) -> Figures:
    """Publishing from one process, to a queue that nobody consumes."""

    def run(command: str, count: int, options: dict[str, Any]) -> Figures:
        contender.reset()
        return bench.child(contender.spec.with_options(options), command, count)

    figures = run("publish", tasks, {})
    for name, options in (("stored", contender.stored), ("unforced", contender.unforced)):
        if options is not None:
            figures[name] = run("publish", tasks, options) if options else dict(figures)
            figures[f"{name}_threads"] = run("threads", tasks, options)
    if contender.bulk:
        figures["bulk"] = run("bulk", in_bulk, {})
    elif contender.unforced is not None:
        figures["bulk"] = dict(figures["unforced"])
    contender.reset()
    return figures


def drain(
    bench: Bench, contender: Contender, pool: tuple[str, int], tasks: int, waiting: int
) -> Figures:
    """`tasks` no-ops by one worker that finds `waiting` messages when it starts.

    From the first task's execution to the last one's, or for half a minute; CPU time from just
    after the first.
    """
    bench.fill(contender, waiting)
    with bench.workers(contender, *pool) as crew:
        crew.wait_for_first()
        worker, server = crew.usage(), Usage(contender.spec.server)
        before = crew.executions.count()
        crew.wait(tasks, DRAIN_LIMIT)
        count = crew.executions.count() - before
        spent = {"worker_us": worker.seconds(), "server_us": server.seconds()}
        done = crew.executions.read()[:tasks]
    return {**rates(done), **micros(spent, count), "tasks": len(done)}


def compete(bench: Bench, contender: Contender, workers: int, tasks: int) -> Figures:
    """Workers of one process each on one queue, and one alone: no-ops a second, and the ratio.

    Counts from the first task of the worker that began last; the queue is filled so that enough
    is left then.
    """
    alone = drain(bench, contender, ("solo", 1), tasks, tasks)
    waiting = tasks * 2
    bench.fill(contender, waiting)
    with bench.workers(contender, "solo", 1, workers) as crew:
        crew.wait_for_first()
        crew.wait(waiting, DRAIN_LIMIT)
        done = crew.executions.read()
    first: dict[int, float] = {}
    for execution in done:
        first.setdefault(execution.pid, execution.at)
    if len(first) < workers:
        raise ProcessError(f"only {len(first)} of {workers} workers got a task")
    together = rates([execution for execution in done if execution.at >= max(first.values())])
    return {**together, "alone": alone, "ratio": together["flowing_per_s"] / alone["flowing_per_s"]}


def latency(bench: Bench, contender: Contender, tasks: int, per_s: int) -> Figures:
    """From before `apply_async` to the task's first line, at a steady pace, one idle worker."""
    warm = per_s
    contender.reset()
    bench.child(contender.spec, "send", 1)
    with bench.workers(contender, *PREFORK) as crew:
        crew.wait_for_first()
        time.sleep(2)
        bench.child(contender.spec, "paced", warm + tasks, per_s)
        crew.wait(1 + warm + tasks, 10)
        done = [execution for execution in crew.executions.read() if execution.sent]
    times = [
        1000 * (execution.at - execution.sent)
        for execution in sorted(done, key=lambda execution: execution.sent)[warm:]
    ]
    if len(times) < tasks:
        raise ProcessError(f"{len(times)} of {tasks} tasks ran")
    return {"tasks": len(times), **percentiles(times)}


def idle(bench: Bench, contender: Contender, seconds: float, settling: float) -> Figures:
    """CPU that a worker with nothing to do takes, and its server."""
    contender.reset()
    bench.child(contender.spec, "send", 1)
    with bench.workers(contender, *PREFORK) as crew:
        crew.wait_for_first()
        time.sleep(settling)
        used = {"worker_percent": crew.usage(), "server_percent": Usage(contender.spec.server)}
        time.sleep(seconds)
        spent = {name: usage.seconds() for name, usage in used.items()}
    return {name: 100 * cpu / seconds for name, cpu in spent.items() if cpu is not None}


def rates(done: list[Execution]) -> Figures:
    """Tasks a second from the first to the last; with the time in which nothing ran, and without.

    A worker may wait while there are messages: kombu's event loop can go to sleep on
    acknowledgements that it has not sent, and nothing comes before they are.
    """
    gaps = [after.at - before.at for before, after in pairwise(done)]
    if not gaps:
        raise ProcessError("too few tasks ran to tell a rate")
    pauses = [gap for gap in gaps if gap >= PAUSE]
    seconds, paused = sum(gaps), sum(pauses)
    figures: Figures = {
        "per_s": len(gaps) / seconds,
        "flowing_per_s": (len(gaps) - len(pauses)) / (seconds - paused),
        "paused_s": paused,
    }
    if paused > seconds / 20:
        figures["remark"] = (
            f"did nothing in {paused:.1f} of {seconds:.1f} s, in {len(pauses)} pauses"
        )
    return figures
