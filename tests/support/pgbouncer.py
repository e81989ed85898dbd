"""Runs PgBouncer in transaction mode in front of the test's database."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.processes import free_port, until

needs_pgbouncer = pytest.mark.skipif(
    shutil.which("pgbouncer") is None, reason="pgbouncer is not installed"
)


class Pooler:
    """A pooler that gives each transaction another session."""

    def __init__(self, database: str, folder: Path, **settings: object) -> None:
        self.port = free_port()
        self._settings = {"default_pool_size": 3, **settings}
        self._config, self._log = folder / "pgbouncer.ini", folder / "pgbouncer.log"
        server = self._configure(database)
        self.start()
        self.url = f"postgresql://{self._user}@127.0.0.1:{self.port}/{server['dbname']}"

    def _configure(self, database: str) -> dict[str, Any]:
        """Writes its configuration; returns the parts of the database's DSN."""
        server = conninfo_to_dict(database)
        self._user = server["user"]
        host = Path(str(server.get("host") or ""))
        #: The group that alone reaches an embedded server of root's.
        self._group = host.stat().st_gid if host.is_absolute() and os.getuid() == 0 else None
        keys = ("host", "port", "user", "password")
        upstream = " ".join(f"{key}={server[key]}" for key in keys if key in server)
        more = "".join(f"{key} = {value}\n" for key, value in self._settings.items())
        self._config.write_text(
            f"[databases]\n* = {upstream}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {self.port}\nunix_socket_dir =\nauth_type = any\n"
            f"admin_users = {self._user}\n"
            "pool_mode = transaction\nignore_startup_parameters = extra_float_digits\n" + more
        )
        return server

    def start(self) -> None:
        # A server's folder may be closed to the pooler's user; root may not run it.
        user = "nobody" if os.getuid() == 0 else None
        groups = None if self._group is None else [self._group]
        for each in self._config.parents[:5]:
            with suppress(PermissionError):
                each.chmod(each.stat().st_mode | 0o755)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                ["pgbouncer", str(self._config)],
                stdout=log,
                stderr=log,
                user=user,
                extra_groups=groups,
                cwd="/",
            )

    def kill(self) -> None:
        """Kills it, and starts another in its place."""
        self.process.kill()
        self.process.wait()
        self.start()
        self.await_up()

    def lead_to(self, database: str) -> None:
        """Leads its clients to another server, as after a failover."""
        self._configure(database)
        self.command("RELOAD")
        self.command("RECONNECT")

    def await_up(self) -> None:
        """Waits until it answers."""

        def is_up() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(self._log.read_text())
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", self.port)) == 0

        until(is_up)

    def command(self, command: str) -> None:
        """Runs a command of its console, such as PAUSE or RESUME."""
        console = f"postgresql://{self._user}@127.0.0.1:{self.port}/pgbouncer"
        with psycopg.connect(console, autocommit=True) as admin:
            admin.execute(command)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


@contextmanager
def pooler(database: str, folder: Path, **settings: object) -> Iterator[Pooler]:
    """Runs a pooler during the block; `settings` are more lines of its configuration."""
    made = Pooler(database, folder, **settings)
    try:
        made.await_up()
        yield made
    finally:
        made.close()
