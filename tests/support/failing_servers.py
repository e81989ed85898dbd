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
    copy = TemporaryServer()
    data, target = _data(primary), _data(copy)
    primary.stop()
    copy.stop()
    subprocess.run(["rm", "-rf", target], check=True)
    subprocess.run(["cp", "-a", data, target], check=True)
    (Path(target) / "postmaster.pid").unlink(missing_ok=True)
    subprocess.run(["cp", "-a", f"{data}/PG_VERSION", f"{target}/standby.signal"], check=True)
    primary.start()
    copy.start()
    with psycopg.connect(copy.dsn, autocommit=True) as admin:
        admin.execute("SELECT pg_promote()")
    return copy


def _data(server: TemporaryServer) -> str:
    with psycopg.connect(server.dsn) as connection:
        [path] = connection.execute("SHOW data_directory").fetchone() or [""]
    return str(path)
