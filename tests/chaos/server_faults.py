"""What goes wrong with the pooler and the server."""

import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import psycopg

from pgbeat.testing.databases import TemporaryServer
from tests.chaos.noted import Noted
from tests.chaos.site import BEATS, LEASE, WORKERS, now
from tests.support.failing_servers import frozen, read_only, without_connections


class ServerFaults(Noted):
    """Brings about faults of the pooler and the server."""

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

    def take_connections(self) -> None:
        """Takes all sessions that the server allows, and some of a member's; seldom."""
        if self.chance.random() < 0.7:
            role, seconds = self.chance.choice([*BEATS, *WORKERS]), self.chance.choice([3, 10, 20])
            began = now()
            with suppress(psycopg.OperationalError), without_connections(self.site.server, role):
                self._calm.wait(seconds)
            self._note(f"max_connections reached for {seconds} s", "*", began)

    def fill_disk(self) -> None:
        """Leaves no room on the server's disk for a while; seldom.

        Where there is none for the log of transactions, the server ends itself.
        """
        if self.chance.random() < 0.7 and self.site.disk is not None:
            left, seconds = self.chance.choice([0, 1 << 20, 8 << 20]), self.chance.choice([3, 10])
            began = now()
            with self.site.disk.full(left):
                self._calm.wait(seconds)
            outcome = "" if self.site.await_server() else ", and Postgres ended"
            self._note(f"disk full for {seconds} s{outcome}", "*", began)

    def promote_standby(self) -> None:
        """Promotes a synchronous standby while the server hangs, which then thaws; seldom."""
        if self.chance.random() < 0.7:
            began, hangs, behind = (
                now(),
                self.chance.choice([3, 10, 35]),
                self.chance.choice([3, 25]),
            )
            self.site.begin_standby()
            with frozen(self.site.server):
                self._calm.wait(hangs)
                self.site.promote()
                self._calm.wait(3)
            self._calm.wait(behind)
            self.site.stop_spare()
            self._note(f"standby promoted after {hangs} s, {behind} s beside the old", "*", began)

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
