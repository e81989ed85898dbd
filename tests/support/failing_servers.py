"""Has servers fail: they hang, refuse to write, have no room, or are succeeded by a standby."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg

from pgbeat.testing.databases import TemporaryServer
from tests.support.processes import until
from tests.support.tcp_proxy import Proxy


@contextmanager
def frozen(server: TemporaryServer) -> Iterator[None]:
    """Stops all of a server's processes (SIGSTOP) during the block."""
    postmaster = server.pid
    os.kill(postmaster, signal.SIGSTOP)  # so that no more are forked
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    processes = [postmaster, *map(int, children)]
    _signal(processes, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(processes, signal.SIGCONT)


@contextmanager
def read_only(server: TemporaryServer) -> Iterator[None]:
    """Has a server end all sessions and refuse to write during the block, as one that is demoted.

    Those who connect again are still led to it.
    """
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        admin.execute("SELECT pg_reload_conf()")
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
    yield
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("SET default_transaction_read_only = off")
        admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
        admin.execute("SELECT pg_reload_conf()")


@contextmanager
def without_connections(server: TemporaryServer, role: str) -> Iterator[None]:
    """Takes all sessions that a server has left during the block, and those of a role.

    Others get one only if somebody gives up theirs.
    """
    with ExitStack() as sessions:

        def take_all() -> None:
            with suppress(psycopg.OperationalError):
                while True:
                    sessions.enter_context(psycopg.connect(server.dsn, autocommit=True))

        admin = sessions.enter_context(psycopg.connect(server.dsn, autocommit=True))
        take_all()
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [role]
        )
        take_all()
        yield


class SmallDisk:
    """A disk in memory for servers' folders, which can be full. Needs root, and Linux."""

    _ROOM = 8 << 30

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pgd-", dir="/dev/shm"))
        self.folder.chmod(0o755)
        self._mount("-t", "tmpfs", "-o", f"size={self._ROOM},mode=755", "small")

    def _mount(self, *options: str) -> None:
        command = ["mount", *options, str(self.folder)]
        subprocess.run(command, check=True, capture_output=True)

    @contextmanager
    def full(self, left: int) -> Iterator[None]:
        """Leaves so many bytes during the block."""
        while True:
            size = shutil.disk_usage(self.folder).used + left
            with suppress(subprocess.CalledProcessError):  # somebody was faster
                self._mount("-o", f"remount,size={size}")
                break
        try:
            yield
        finally:
            self._mount("-o", f"remount,size={self._ROOM}")

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", self.folder], check=True)
        self.folder.rmdir()


def _signal(processes: list[int], sign: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, sign)


def promoted_copy(primary: TemporaryServer) -> TemporaryServer:
    """Starts a standby of a server and promotes it: both take writes, on timelines 1 and 2.

    The primary is restarted meanwhile.
    """
    copy, _ = cold_copy(primary, "standby.signal")
    primary.start()
    copy.start()
    promote(copy)
    return copy


@contextmanager
def standby(primary: TemporaryServer) -> Iterator[tuple[TemporaryServer, Proxy]]:
    """Starts a standby that streams from a server, by a network that can be cut."""
    copy, network = TemporaryServer(), Proxy(primary.dsn)
    data = data_folder(copy)
    copy.stop()
    _stream(primary, network.dsn, copy, data)
    try:
        yield copy, network
    finally:
        copy.remove()
        network.close()


def _stream(primary: TemporaryServer, route: str, standby: TemporaryServer, data: str) -> None:
    """Copies a server to one that is stopped, and starts that as its standby."""
    owner = os.stat(data)
    subprocess.run(["rm", "-rf", data], check=True)
    options = ("-D", data, "-d", route, "-c", "fast", "-R", "--no-sync")
    subprocess.run([primary.programs / "pg_basebackup", *options], check=True, capture_output=True)
    subprocess.run(["chown", "-R", f"{owner.st_uid}:{owner.st_gid}", data], check=True)
    standby.start()


def cold_copy(server: TemporaryServer, signal_file: str) -> tuple[TemporaryServer, Path]:
    """Stops a server and copies its data to another one, for a kind of recovery.

    Returns that one, which is not started, and its folder of data.
    """
    copy = TemporaryServer()
    data, target = data_folder(server), data_folder(copy)
    server.stop()
    copy.stop()
    subprocess.run(["rm", "-rf", target], check=True)
    subprocess.run(["cp", "-a", data, target], check=True)
    (Path(target) / "postmaster.pid").unlink(missing_ok=True)
    # It has the owner of the others.
    subprocess.run(["cp", "-a", f"{data}/PG_VERSION", f"{target}/{signal_file}"], check=True)
    return copy, Path(target)


def begin_standby(
    primary: TemporaryServer, route: str, standby: TemporaryServer, data: str
) -> None:
    """Starts a server that is stopped as a synchronous standby of another.

    From then on each commit that is answered is on both. `data` is the standby's folder, `route`
    the primary's DSN for it: a proxy's, since no other user may reach its socket.
    """
    _stream(primary, route, standby, data)
    with psycopg.connect(primary.dsn, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        admin.execute("SELECT pg_reload_conf()")
        until(lambda: admin.execute(_SYNCHRONOUS).rowcount, 60, "the standby is synchronous")


_SYNCHRONOUS = "SELECT FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync'"


def promote(standby: TemporaryServer) -> None:
    """Makes a primary of a standby."""
    with psycopg.connect(standby.dsn, autocommit=True) as admin:
        admin.execute("SELECT pg_promote()")


def data_folder(server: TemporaryServer) -> str:
    with psycopg.connect(server.dsn) as connection:
        [path] = connection.execute("SHOW data_directory").fetchone() or [""]
    return str(path)
