"""What goes wrong on the walk: each fault is chosen by chance, noted, and mended after a while."""

import json
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import psycopg
from sqlalchemy import NullPool, create_engine

import pgbeat
from pgbeat.config import postgres_url
from pgbeat.testing.databases import TemporaryServer
from tests.acceptance.walk import app as walk_app
from tests.acceptance.walk.load import LANES, UNREACHABLE, Load
from tests.acceptance.walk.site import BEATS, LEASE, POOLED, WORKERS, Site, now
from tests.support.failing_servers import frozen, read_only


@dataclass(frozen=True)
class Fault:
    """One fault: what, to whom (`*` for all), from when until when."""

    kind: str
    whom: str
    began: float
    ended: float


class Faults:
    """Brings faults about, one after another; long ones overlap."""

    def __init__(self, site: Site, load: Load, seed: int) -> None:
        self.site, self.load = site, load
        self.chance = random.Random(seed)  # noqa: S311
        self.history: list[Fault] = []
        self._under_way: list[threading.Thread] = []
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._calm = threading.Event()
        self._kinds: dict[Callable[[], None], int] = {
            self.kill_worker: 6,
            self.kill_child: 5,
            self.freeze_worker: 5,
            self.stop_worker: 3,
            self.kill_beat: 5,
            self.freeze_beat: 2,
            self.cut_sessions: 10,
            self.cancel_statement: 8,
            self.open_transaction: 10,
            self.pause_pooler: 4,
            self.kill_pooler: 1,
            self.restart_server: 1,
            self.freeze_server: 1,
            self.read_only_server: 1,
        }

    def step(self) -> None:
        """Brings one fault about."""
        self._calm.clear()
        for whom in self.site.revive(frozenset(self._busy)):
            self._note("ended by itself", whom, now())
        self.chance.choices(list(self._kinds), list(self._kinds.values()))[0]()

    def calm(self) -> None:
        """Mends everything that is still under way."""
        self._calm.set()
        for thread in self._under_way:
            thread.join(60)
        self._under_way.clear()
        self.site.revive()

    # -- processes

    def kill_worker(self) -> None:
        """SIGKILL to a worker, with or without its children."""
        if (name := self._free(*WORKERS)) is not None:
            node, began = self.site.node(name), now()
            self.site.kill(name, with_children=self.chance.random() < 0.5)
            self._note("killed", node, began)

    def kill_child(self) -> None:
        """SIGKILL to one process of a prefork pool."""
        preforked = [name for name, options in WORKERS.items() if "prefork" in options]
        if (name := self._free(*preforked)) is None:
            return
        began, children = now(), self.site.children(name)
        if children:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(self.chance.choice(children)).kill()
            self._note("child killed", self.site.node(name), began)

    def stop_worker(self) -> None:
        """A warm shutdown."""
        if (name := self._free(*WORKERS)) is None:
            return
        process, node, began = self.site.crew[name], self.site.node(name), now()
        process.send_signal(signal.SIGTERM)

        def wait() -> None:
            with suppress(Exception):
                process.wait(30)
            process.kill_group()
            self.site.start(name)
            self._note("stopped", node, began)

        self._go_on(wait, name)

    def freeze_worker(self) -> None:
        """SIGSTOP to a worker and its children, for longer than a lease now and then."""
        if (name := self._free(*WORKERS)) is not None:
            self._freeze(name, self.chance.choice([1, 3, LEASE * 1.5, LEASE * 3, 20]))

    def kill_beat(self) -> None:
        """SIGKILL to a beat."""
        if (name := self._free(*BEATS)) is not None:
            began = now()
            self.site.kill(name, with_children=True)
            self._note("killed", name, began)

    def freeze_beat(self) -> None:
        """SIGSTOP to a beat."""
        if (name := self._free(*BEATS)) is not None:
            self._freeze(name, self.chance.choice([1, 5, 15]))

    def _freeze(self, name: str, seconds: float) -> None:
        began, whom = now(), self.site.node(name) if name in WORKERS else name
        self.site.signal(name, signal.SIGSTOP)

        def thaw() -> None:
            self._calm.wait(seconds)
            self.site.signal(name, signal.SIGCONT)
            self._note(f"frozen for {seconds:g} s", whom, began)

        self._go_on(thaw, name)

    # -- sessions and transactions

    def cut_sessions(self) -> None:
        """Terminates some or all sessions of a member of the crew."""
        self._strike("pg_terminate_backend", "cut", self.chance.choice([1, 1, 2, 100]))

    def cancel_statement(self) -> None:
        """Cancels whatever statement a member's sessions run."""
        self._strike("pg_cancel_backend", "cancelled", 100)

    def _strike(self, function: str, kind: str, most: int) -> None:
        role = self.chance.choice([*BEATS, *WORKERS, "pooler"])
        role = "pooler" if role in POOLED else role
        began = now()
        done = self.site.sql(
            f"SELECT {function}(pid) FROM (SELECT pid FROM pg_stat_activity WHERE usename = %s"
            " ORDER BY random() LIMIT %s) AS s",
            role,
            most,
        )
        if done:
            for node in self._nodes(role):
                self._note(kind, node, began)

    def _nodes(self, role: str) -> list[str]:
        names = sorted(POOLED) if role == "pooler" else [role]
        return [self.site.node(name) if name in WORKERS else name for name in names]

    def open_transaction(self) -> None:
        """Leaves a transaction open that holds what beat or workers want."""
        seconds = self.chance.choice([1, 3, 8, 20])
        what = self.chance.choice(["schedules", "lanes", "jobs", "submit", "queue", "messages"])
        commits, began = self.chance.random() < 0.5, now()
        key, queue = f"key {self.chance.randint(1, 3)}", f"new-{self.chance.randrange(10**9)}"
        key = "shared" if self.chance.random() < 0.3 else key

        def hold() -> None:
            try:
                self._hold(what, key, queue, seconds, commits)
            except UNREACHABLE:
                pass
            finally:
                self._note(f"open transaction on {what} for {seconds} s", "-", began)

        self._go_on(hold, None)

    def _hold(self, what: str, key: str, queue: str, seconds: float, commits: bool) -> None:
        engine, made = create_engine(postgres_url(self.site.dsn), poolclass=NullPool), ""
        with engine.connect() as connection:
            if what == "submit":
                job = pgbeat.submit(
                    "walk.work", unique_key=key, connection=connection, app=self.load.app
                )
                made = str(job.id)
            elif what == "queue":
                inside = pgbeat.in_transaction(connection, app=self.load.app)
                walk_app.plain.apply_async(connection=inside, queue=queue)
            else:
                connection.exec_driver_sql(_HOLDS[what])
            self._calm.wait(seconds)
            if not commits:
                connection.rollback()
                return
            connection.commit()
        if made:
            self.load.promised.jobs.setdefault(made, {})

    # -- the pooler and the server

    def pause_pooler(self) -> None:
        """PAUSE, and RESUME after a while, later than a lease now and then."""
        if not self._take("pooler"):
            return
        began, seconds = now(), self.chance.choice([2, LEASE / 2, LEASE * 1.5, LEASE * 3])
        with suppress(psycopg.Error):
            threading.Thread(target=self._quietly, args=("PAUSE",), daemon=True).start()

        def resume() -> None:
            self._calm.wait(seconds)
            self._quietly("RESUME")
            for node in self._nodes("pooler"):
                self._note(f"pooler paused for {seconds:g} s", node, began)

        self._go_on(resume, "pooler")

    def _quietly(self, command: str) -> None:
        with suppress(psycopg.Error):
            self.site.pooler(command)

    def kill_pooler(self) -> None:
        """SIGKILL to the pooler."""
        if self._take("pooler"):
            began = now()
            self.site.kill_pooler()
            self._busy.discard("pooler")
            for node in self._nodes("pooler"):
                self._note("pooler killed", node, began)

    def restart_server(self) -> None:
        """Restarts Postgres, by a fast or an immediate shutdown; seldom."""
        if self.chance.random() < 0.3:
            began, sign = now(), self.chance.choice([signal.SIGINT, signal.SIGQUIT])
            self.site.restart_server(sign)
            self._note(f"Postgres restarted ({sign.name})", "*", began)

    def freeze_server(self) -> None:
        """SIGSTOP to Postgres, for longer than anybody waits now and then; seldom."""
        if self.chance.random() < 0.5:
            self._disturb("Postgres frozen", self.chance.choice([3, 10, 35]), frozen)

    def read_only_server(self) -> None:
        """Has Postgres refuse to write for a while, as a primary that is demoted; seldom."""
        if self.chance.random() < 0.7:
            self._disturb("Postgres read-only", self.chance.choice([3, 10, 20]), read_only)

    def _disturb(
        self,
        kind: str,
        seconds: float,
        failing: Callable[[TemporaryServer], AbstractContextManager[None]],
    ) -> None:
        """Has the server fail while nothing else is done to anybody."""
        began = now()
        with failing(self.site.server):
            self._calm.wait(seconds)
        self._note(f"{kind} for {seconds:g} s", "*", began)

    # -- bookkeeping

    def _free(self, *names: str) -> str | None:
        """One of the members that no other fault has; marks none."""
        free = [name for name in names if name not in self._busy]
        return self.chance.choice(free) if free else None

    def _take(self, name: str) -> bool:
        with self._lock:
            if name in self._busy:
                return False
            self._busy.add(name)
            return True

    def _go_on(self, what: Callable[[], None], name: str | None) -> None:
        """Runs the rest of a fault on a thread of its own, and keeps others off its member."""
        if name is not None:
            self._busy.add(name)

        def run() -> None:
            try:
                what()
            finally:
                if name is not None:
                    self._busy.discard(name)

        thread = threading.Thread(target=run, daemon=True)
        self._under_way.append(thread)
        thread.start()

    def _note(self, kind: str, whom: str, began: float) -> None:
        fault = Fault(kind, whom, began, now())
        with self._lock:
            self.history.append(fault)
        line = f"{time.strftime('%H:%M:%S')} {whom}: {kind}"
        with Path(self.site.folder / "faults").open("a") as file:
            file.write(json.dumps(asdict(fault)) + "\n")
        print(line, flush=True)


_HOLDS = {
    "schedules": "UPDATE pgbeat.schedules SET owner = owner WHERE id % 7 = 0",
    "lanes": f"UPDATE pgbeat.lanes SET options = options WHERE name = '{next(iter(LANES))}'",
    "jobs": "SELECT FROM pgbeat.jobs WHERE finished_at IS NULL LIMIT 3 FOR UPDATE",
    "messages": "SELECT FROM kombu_message LIMIT 3 FOR UPDATE",
}
