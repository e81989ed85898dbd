"""Runs the rows that the command line names, or all: `python -m tests.acceptance.failovers`."""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pgbeat.config import postgres_url
from pgbeat.database.migrations import migrate
from tests.acceptance.failovers.cluster import Cluster, Node
from tests.chaos.site import APP
from tests.support.databases import rows_of
from tests.support.processes import Process, Processes, until

_PROGRAMS = ("/usr/bin/patroni", "etcd", "haproxy", "pgbouncer")
_SCHEDULES = """
    INSERT INTO pgbeat.schedules (name, task, every)
    SELECT 's' || i, 'chaos.work_late', interval '1 s' FROM generate_series(1, 4) AS i
"""
_TICKS = (
    "SELECT extract(epoch FROM decided_at)::float8 FROM pgbeat.ticks WHERE outcome = 'launched'"
)
_QUEUED = """
    SELECT payload::jsonb #>> '{headers,id}' FROM kombu_message
     WHERE queue_id = (SELECT id FROM kombu_queue WHERE name = 'celery')
    UNION ALL SELECT id::text FROM pgbeat.jobs WHERE finished_at IS NULL
"""
#: Seconds of load before the fault and after the recovery, and until a hung server thaws.
_BEFORE, _AFTER, _THAW = 10.0, 15.0, 10.0
#: Seconds within which everybody must be at work again, and everything finish.
_PATIENCE, _STILL = 240.0, 40.0


class Row(NamedTuple):
    """A failure, of which kind of replication, seen through which URL."""

    replication: str
    url: str
    failure: str


ROWS = [
    *(Row("sync", "haproxy", f) for f in ("switchover", "killed", "hangs", "vanishes", "demoted")),
    *(Row("sync", "hosts", f) for f in ("killed", "hangs", "vanishes")),
    *(Row("sync", "pgbouncer", f) for f in ("switchover", "killed")),
    *(Row("async", "haproxy", f) for f in ("switchover", "killed", "hangs", "behind")),
    Row("async", "hosts", "hangs"),
]


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    if file.exists():
        yield from map(json.loads, file.read_text().splitlines())


class Run:
    """One row: the load, the failure, and what they left behind."""

    def __init__(self, cluster: Cluster, row: Row, number: int) -> None:
        self.cluster, self.row, self.database = cluster, row, f"run{number}"
        self.folder = cluster.folder / f"{number}-{'-'.join(row)}"
        self.folder.mkdir()
        self._ends = ExitStack()

    def measure(self) -> dict[str, Any]:
        """Runs it; returns the cells of its row."""
        self.cluster.replicate(is_sync=self.row.replication == "sync")
        primary = self.cluster.primary()
        assert primary is not None
        with primary.connect() as admin:
            admin.execute(f"CREATE DATABASE {self.database}")
        migrate.upgrade(postgres_url(self.cluster.balanced(self.database)))
        self.sql(_SCHEDULES)
        with self._ends:
            self._start()
            until(lambda: self._all_work(time.time() - 5), 120, "all work")
            time.sleep(_BEFORE)
            began = time.time()
            self._fail(primary)
            until(lambda: self.cluster.primary() not in (None, primary), _PATIENCE, "another leads")
            promoted = time.time()
            until(lambda: self._all_work(promoted), _PATIENCE, "all work again")
            recovered = time.time()
            self._settle(primary)
            (self.folder / "stop").touch()
            self.sql("UPDATE pgbeat.schedules SET paused_at = now()")
            ended = sum(process.poll() is not None for process in self.crew.started[:4])
            found = {"ended": ended, "stuck": self._finish()}
            return found | self._found(began, promoted, recovered)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Runs a statement on the primary."""
        node = until(self.cluster.primary, 120)
        with node.connect(self.database) as connection:
            return rows_of(connection.execute(statement))

    def _start(self) -> None:
        url, options = self._url()
        env = {
            "CHAOS_DATABASE": url,
            "CHAOS_BROKER": f"pgbeat+{url}",
            "CHAOS_OPTIONS": json.dumps(options),
            "CHAOS_FOLDER": str(self.folder),
            "CHAOS_EPOCH": str(time.time() - time.monotonic()),
        }
        self.crew = Processes(url, self.folder)
        self._ends.callback(self._stop)
        self.crew.env |= env
        for _ in range(2):
            self._celery("beat", "-S", "pgbeat.Scheduler", "--pidfile=")
        self.workers = self._start_workers()
        self.crew.run(sys.executable, "-m", "tests.acceptance.failovers.publish")

    def _celery(self, *command: str) -> Process:
        return self.crew.run(sys.executable, "-m", "celery", "-A", APP, *command, "-l", "INFO")

    def _start_workers(self) -> list[Process]:
        return [
            self._celery("worker", "-n", f"{pool}@failovers", "-P", pool, "-c", "2")
            for pool in ("prefork", "threads")
        ]

    def _finish(self) -> int:
        """Waits until everything finishes; returns how many tasks need other workers for that."""
        with suppress(AssertionError):
            until(lambda: not self.sql(_QUEUED), _STILL)
            return 0
        stuck = self.sql(_QUEUED)
        for worker in self.workers:
            worker.terminate()
            worker.wait(60)
        self._start_workers()
        until(lambda: not self.sql(_QUEUED), _PATIENCE, "everything finishes")
        return len(stuck)

    def _stop(self) -> None:
        for process in self.crew.started:
            process.kill_group()

    def _url(self) -> tuple[str, dict[str, Any]]:
        if self.row.url == "haproxy":
            return self.cluster.balanced(self.database), {}
        hosts = self.cluster.hosts(self.database)
        if self.row.url == "hosts":
            return hosts, {}
        pooler, is_over = self.cluster.pooler(self.database, self.folder), threading.Event()
        pooler.await_up()
        arguments = (pooler, self.database, is_over.is_set)
        thread = threading.Thread(target=self.cluster.repoint, args=arguments)
        thread.start()
        self._ends.callback(pooler.close)
        self._ends.callback(thread.join)
        self._ends.callback(is_over.set)
        return pooler.url, {"direct_url": hosts}

    def _fail(self, primary: Node) -> None:
        if self.row.failure == "switchover":
            self.cluster.switch_over()
        elif self.row.failure == "killed":
            primary.kill()
        elif self.row.failure == "hangs":
            primary.signal(signal.SIGSTOP)
        elif self.row.failure == "vanishes":
            primary.vanish()
        elif self.row.failure == "behind":
            primary.others.cut()
            time.sleep(5)
            primary.kill()
        else:
            with primary.connect() as admin:
                admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
                admin.execute("SELECT pg_reload_conf()")
                admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    f" WHERE datname = '{self.database}'"
                )
            time.sleep(10)
            self.cluster.switch_over()

    def _settle(self, primary: Node) -> None:
        """Waits on, with a thawed server if it hung, and makes the cluster whole."""
        if self.row.failure == "hangs":
            time.sleep(_THAW)
            primary.signal(signal.SIGCONT)
        time.sleep(_AFTER)
        primary.revive()
        if self.row.failure == "demoted":
            with primary.connect() as admin:
                admin.execute("SET default_transaction_read_only = off")
                admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
                admin.execute("SELECT pg_reload_conf()")
        until(self.cluster.is_whole, _PATIENCE, "the old primary follows")

    def _starts(self) -> list[dict[str, Any]]:
        return [line for line in _lines(self.folder / "journal") if line["phase"] == "start"]

    def _acknowledged(self) -> list[dict[str, Any]]:
        return [line for line in _lines(self.folder / "published") if "id" in line]

    def _all_work(self, since: float) -> bool:
        starts = [line for line in self._starts() if line["at"] > since]
        seen = {line["worker"] for line in starts} | {line["task"] for line in starts}
        return len(seen) == 5 and any(line["asked"] > since for line in self._acknowledged())

    def _found(self, began: float, promoted: float, recovered: float) -> dict[str, Any]:
        starts, sent = self._starts(), self._acknowledged()
        runs = Counter(line["id"] for line in starts)
        lost = [line for line in sent if line["id"] not in runs]
        often = [line for line in starts if runs[line["id"]] > 1]
        within = (began - 2, recovered + _AFTER)
        times = {
            "publish": [line["at"] for line in sent],
            "launch": [at for (at,) in self.sql(_TICKS)],
        } | {
            pool: [line["at"] for line in starts if line["worker"].startswith(pool)]
            for pool in ("prefork", "threads")
        }
        refused = [line for line in _lines(self.folder / "published") if "error" in line]
        seen = {"lost": lost, "repeated": often, "refused": refused, "began": began}
        (self.folder / "found").write_text(json.dumps(seen, indent=1))
        return {
            "acknowledged": len(sent),
            "lost": len(lost),
            "repeated": len({line["id"] for line in often}),
            "refused": len(refused),
            "led": round(promoted - began, 1),
            **{what: round(_gap(moments, *within), 1) for what, moments in times.items()},
        }


def _gap(moments: list[float], begin: float, end: float) -> float:
    """Returns the longest time without any of the moments."""
    inside = sorted(moment for moment in moments if begin <= moment <= end)
    return max(after - before for before, after in pairwise([begin, *inside, end]))


def main() -> int:
    """Prints a table of the rows whose names have all the words of the command line."""
    program = "python -m tests.acceptance.failovers"
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("words", nargs="*", help="words of rows: async haproxy hangs")
    parser.add_argument("--folder", type=Path, help="where logs and journals stay")
    given = parser.parse_args()
    if missing := [program for program in _PROGRAMS if shutil.which(program) is None]:
        parser.error(f"not installed: {', '.join(missing)}")
    rows = [row for row in ROWS if set(given.words) <= set(row)]
    if not rows:
        known = dict.fromkeys(word for row in ROWS for word in row)
        parser.error(f"no row has all of these words; there are {', '.join(known)}")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="failovers-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"folder {folder}", flush=True)
    cluster, is_good = Cluster(folder), True
    try:
        for number, row in enumerate(rows):
            found = Run(cluster, row, number).measure()
            print(" | ".join(row), found, flush=True)
            is_good = is_good and not (row.replication == "sync" and found["lost"])
    finally:
        cluster.close()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
