"""pgbeat under the harness: a producer, a beat, and real `celery worker` processes.

All of them end with this process, killed or not, as a container's do.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from importlib.metadata import version
from pathlib import Path
from threading import Event, Thread

import psycopg
from app import NOTE, NOTES, app, job
from contract import WINDOW, Config, Histogram, Telemetry, batches, rate_now
from sqlalchemy.exc import OperationalError

import pgbeat
from pgbeat.testing.embedded import child_command

_FOLDER = Path(__file__).parent
_CELERY = [sys.executable, "-m", "celery", "-A", "app"]
#: Bytes of a pipe, so that workers never wait for their adapter.
_PIPE = 1 << 20
#: Processes that share the threads that the harness wants: one a core, up to the harness's four.
_WORKERS = 4
#: Seconds between two looks at the queue.
_LOOK = 0.2


class Fleet:
    """The workers and the beat of one replica."""

    def __init__(self, config: Config) -> None:
        self._notes, self._told = os.pipe()
        fcntl.fcntl(self._told, fcntl.F_SETPIPE_SZ, _PIPE)
        os.set_blocking(self._notes, False)
        usual = min(config.workers, os.cpu_count() or 1, _WORKERS)
        workers = int(os.environ.get("HARNESS_WORKERS") or usual)
        threads = [
            config.workers // workers + (n < config.workers % workers) for n in range(workers)
        ]
        self._processes = [self._start("beat", "-S", "pgbeat.Scheduler", "--pidfile=")]
        for number, concurrency in enumerate(threads):
            name = f"{config.instance}-{number}@%h"
            pool = ("-P", "threads", "-c", str(concurrency))
            self._processes.append(self._start("worker", *pool, "-n", name))

    def _start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            child_command([*_CELERY, *arguments, "-l", "WARNING"]),
            cwd=_FOLDER,
            env={**os.environ, NOTES: str(self._told)},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            pass_fds=[self._told],
        )

    def notes(self) -> list[tuple[float, float, float]]:
        """Returns when the jobs that ended since the last call were sent, began and ended."""
        try:
            return list(NOTE.iter_unpack(os.read(self._notes, _PIPE // NOTE.size * NOTE.size)))
        except BlockingIOError:
            return []

    def ended(self) -> str:
        """Returns the command of a process that has ended; "" if all run."""
        return next((str(p.args[-6:]) for p in self._processes if p.poll() is not None), "")

    def stop(self, patience: float = 4.0) -> None:
        """Ends all in order; those that take too long are killed."""
        deadline = time.monotonic() + patience
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()


class Queue:
    """What waits in the queue, as the database says: up to 10,000 jobs."""

    def __init__(self) -> None:
        #: Jobs that the producer inserted, which alone counts them.
        self.inserted = 0
        #: The jobs that waited, those that workers had claimed, and `inserted` just before.
        self.seen = (0, 0, 0)

    def depth(self) -> int:
        """Returns the jobs that wait, with those inserted since."""
        waiting, _, inserted = self.seen
        return waiting + self.inserted - inserted

    def watch(self, stopped: Event) -> None:
        """Looks again and again, with a new connection after an error."""
        while not stopped.wait(_LOOK):
            with (
                suppress(psycopg.Error),
                psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection,
            ):
                while not stopped.wait(_LOOK):
                    inserted = self.inserted
                    row = connection.execute(
                        "SELECT waiting, claimed FROM pgbeat.queue_load WHERE queue = 'celery'"
                    ).fetchone()
                    self.seen = (*(row or (0, 0)), inserted)


class Producer:
    """Inserts what the harness asks for."""

    def __init__(self, config: Config, queue: Queue) -> None:
        #: What ended it, but for the harness.
        self.error: BaseException | None = None
        self._config, self._queue = config, queue
        self._padding = "x" * config.payload

    def run(self, stopped: Event) -> None:
        """Inserts batch after batch; one that fails is tried again, as an application would."""
        try:
            for count in batches(self._config, self._queue.depth, stopped):
                while not stopped.is_set() and not self._insert(count):
                    stopped.wait(0.1)
                if stopped.is_set():
                    return
        except BaseException as error:
            self.error = error
            raise

    def _insert(self, count: int) -> bool:
        arguments = (time.time(), self._padding)
        try:
            if count == 1:
                pgbeat.submit(job, *arguments)
            else:
                pgbeat.submit_many((job.s(*arguments) for _ in range(count)), app=app)
        except (OperationalError, pgbeat.PgbeatError) as error:
            print(f"[pgbeat] {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            return False
        self._queue.inserted += count
        return True


class Meter:
    """What the samples say."""

    def __init__(self, config: Config, queue: Queue) -> None:
        self._config, self._queue = config, queue
        self._claims, self._ends = Histogram(), Histogram()
        self._completed = self._enqueued = 0

    def add(self, notes: list[tuple[float, float, float]]) -> None:
        """Counts jobs that ended."""
        self._completed += len(notes)
        for sent, began, ended in notes:
            self._claims.add((began - sent) * 1000)
            self._ends.add((ended - sent) * 1000)

    def values(self, seconds: float) -> Mapping[str, tuple[float, float]]:
        """Returns each metric's value and window, for the seconds since the last call."""
        inserted = self._queue.inserted
        enqueued, self._enqueued = inserted - self._enqueued, inserted
        completed, self._completed = self._completed, 0
        values = {
            "enqueue_rate": (enqueued / seconds, seconds),
            "completion_rate": (completed / seconds, seconds),
        }
        for name, histogram in (("claim", self._claims), ("end_to_end", self._ends)):
            for share in (50, 95, 99):
                values[f"{name}_p{share}_ms"] = (histogram.percentile(share), WINDOW)
        if self._config.instance == 0:  # one replica tells what is of all
            values["queue_depth"], values["running_depth"] = ((n, 0) for n in self._queue.seen[:2])
            values["producer_target_rate"] = (rate_now(self._config), 0)
        return values


def main() -> int:
    """Runs until SIGTERM; 1 if a process or the producer ends before."""
    config = Config.of(os.environ)
    with redirect_stdout(sys.stderr):
        app.start(["pgbeat", "migrate"])
    telemetry = Telemetry("pgbeat", config)
    telemetry.describe(
        json.loads((_FOLDER / "adapter.json").read_text()), f"pgbeat {version('pgbeat')}"
    )
    stopped = Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: stopped.set())
    queue = Queue()
    producer = Producer(config, queue)
    meter = Meter(config, queue)
    fleet = Fleet(config)
    for run in (producer.run, queue.watch):
        Thread(target=run, args=(stopped,), daemon=True).start()
    broken = ""
    while not stopped.wait(0.02) and not (broken := producer.error or fleet.ended()):
        meter.add(fleet.notes())
        if (seconds := telemetry.due()) is not None:
            telemetry.sample(meter.values(seconds))
    stopped.set()
    fleet.stop()
    if broken:
        print(f"[pgbeat] ended by itself: {broken}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
