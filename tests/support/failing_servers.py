"""Has servers fail: they hang, with their sockets open, or refuse to write."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from pgbeat.testing.databases import TemporaryServer


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
    with psycopg.connect(copy.dsn, autocommit=True) as admin:
        admin.execute("SELECT pg_promote()")
    return copy


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


def data_folder(server: TemporaryServer) -> str:
    """Returns the folder of a running server's data."""
    with psycopg.connect(server.dsn) as connection:
        [path] = connection.execute("SHOW data_directory").fetchone() or [""]
    return str(path)
