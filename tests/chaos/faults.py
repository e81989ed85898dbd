"""What goes wrong: each fault is chosen by chance, noted, and mended after a while."""

import signal
from collections.abc import Callable, Container
from contextlib import suppress

import psutil
from sqlalchemy import NullPool, create_engine

import pgbeat
from pgbeat.config import postgres_url
from tests.chaos import app as chaos_app
from tests.chaos.load import LANES, UNREACHABLE, Load
from tests.chaos.server_faults import ServerFaults
from tests.chaos.site import BEATS, FAR, LEASE, POOLED, STEPPED, WORKERS, Site, now


class Faults(ServerFaults):
    """Brings faults about, one after another; long ones overlap."""

    def __init__(self, site: Site, load: Load, seed: int, only: Container[str] = ()) -> None:
        """`only` names the faults; by default all."""
        super().__init__(site, seed)
        self.load = load
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
            self.hold_network: 4,
            self.lose_network: 4,
            self.set_clock: 4,
            self.take_connections: 1,
            self.fill_disk: 1,
            self.promote_standby: 1,
        }
        if only:
            self._kinds = {kind: 1 for kind in self._kinds if kind.__name__ in only}
        if site.clock is None:
            print("no clock is set: that needs Linux, and a C compiler")
            self._kinds.pop(self.set_clock, None)
        if site.disk is None:
            print("no disk is full: only root can make a small one, on Linux")
            self._kinds.pop(self.fill_disk, None)

    def step(self) -> None:
        """Brings one fault about."""
        self._calm.clear()
        for whom in self.site.revive(frozenset(self._busy)):
            self._note("ended by itself", whom, now())
        self.chance.choices(list(self._kinds), list(self._kinds.values()))[0]()

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

    def hold_network(self) -> None:
        """Holds all that a member says and hears, for less time than anybody minds."""
        if (name := self._free(*FAR)) is None:
            return
        began, seconds = now(), self.chance.choice([1, 2, 4])
        network, whom = self.site.networks[name], self._nodes(name)[0]
        network.hold()

        def release() -> None:
            self._calm.wait(seconds)
            network.release()
            self._note(f"network held for {seconds} s", whom, began)

        self._go_on(release, name)

    def lose_network(self) -> None:
        """Loses all that a member says and hears; after five seconds the server knows of it."""
        if (name := self._free(*FAR)) is None:
            return
        began, seconds = now(), self.chance.choice([6, 12, 30, 60])
        network, whom = self.site.networks[name], self._nodes(name)[0]
        network.hold()

        def mend() -> None:
            self._calm.wait(5)
            network.cut()
            network.release()
            self._calm.wait(seconds - 5)
            network.mend()
            self._note(f"network lost for {seconds} s", whom, began)

        self._go_on(mend, name)

    def set_clock(self) -> None:
        """Sets a member's clock, and sets it right after a while.

        A worker's is never far ahead: Celery counts a retry's `countdown` on it.
        """
        if (name := self._free(*STEPPED)) is None:
            return
        ahead = [2, 60, 3600] if name in BEATS else [2, 20]
        by, seconds = self.chance.choice([-3600, -60, -2, *ahead]), self.chance.choice([5, 15, 30])
        began, whom = now(), self._nodes(name)[0]
        self.site.set_clock(name, by)

        def set_right() -> None:
            self._calm.wait(seconds)
            self.site.set_clock(name, 0)
            # No other fault of the member, and no second start of a job, is excused by this one.
            self._note(f"clock of {whom} set by {by} s for {seconds} s", "-", began)

        self._go_on(set_right, name)

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
                    "chaos.work", unique_key=key, connection=connection, app=self.load.app
                )
                made = str(job.id)
            elif what == "queue":
                inside = pgbeat.in_transaction(connection, app=self.load.app)
                chaos_app.plain.apply_async(connection=inside, queue=queue)
            else:
                connection.exec_driver_sql(_HOLDS[what])
            self._calm.wait(seconds)
            if not commits:
                connection.rollback()
                return
            connection.commit()
        if made:
            self.load.promised.jobs.setdefault(made, {})


_HOLDS = {
    "schedules": "UPDATE pgbeat.schedules SET owner = owner WHERE id % 7 = 0",
    "lanes": f"UPDATE pgbeat.lanes SET options = options WHERE name = '{next(iter(LANES))}'",
    "jobs": "SELECT FROM pgbeat.jobs WHERE finished_at IS NULL LIMIT 3 FOR UPDATE",
    "messages": "SELECT FROM kombu_message LIMIT 3 FOR UPDATE",
}
