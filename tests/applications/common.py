"""What each application needs: an environment, servers, processes and a table of results."""

import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import psutil
import psycopg

from benchmarks.servers import Redis
from pgbeat.testing.databases import TemporaryServer, in_database
from tests.chaos.broken_builds import BUILDS
from tests.support.databases import rows_of
from tests.support.processes import ROOT, Process, until

#: Broken builds that are a trigger in the database: no application knows of ours.
BROKEN = [name for name, build in BUILDS.items() if build.sql]


class Result(NamedTuple):
    """What became of an application with one set of services."""

    name: str
    #: What was claimed, and whether it is so.
    checks: dict[str, bool]
    #: The services that ran, with the MB that each takes.
    services: dict[str, int]
    figures: dict[str, Any]


def environment(folder: Path, *requirements: str, python: str = sys.executable) -> Path:
    """Makes a virtual environment with pgbeat from this checkout; returns its programs."""
    programs = folder / "venv" / "bin"
    uv = (sys.executable, "-m", "uv", "--quiet")
    if not programs.exists():
        subprocess.run([*uv, "venv", "--python", python, programs.parent], check=True)
    install = ("pip", "install", "--python", str(programs / "python"))
    subprocess.run([*uv, *install, "-e", str(ROOT), *requirements], check=True)
    return programs


def version(programs: Path, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.check_output([str(programs / "python"), "-c", code], text=True).strip()


class Site:
    """A Postgres, a Redis if wanted, and an application's processes, until the block ends.

    The Postgres is embedded, or the one of `PGBEAT_TEST_URL`, whose memory isn't measured.
    """

    def __init__(self, folder: Path, programs: Path, *, redis: bool = False) -> None:
        self.folder, self.programs = folder, programs
        folder.mkdir(parents=True, exist_ok=True)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("PGBEAT_")}
        self.env |= {"PATH": f"{programs}:{self.env['PATH']}", "PYTHONUNBUFFERED": "1"}
        self._stack = ExitStack()
        self._redis = Redis() if redis else None
        #: The process ids of servers, and what was started by `start`, by name.
        self._servers: dict[str, int] = {}
        self._services: dict[str, Process] = {}

    def __enter__(self) -> Self:
        self._postgres = os.environ.get("PGBEAT_TEST_URL", "")
        if not self._postgres:
            server = TemporaryServer()
            self._stack.callback(server.remove)
            self._servers["postgres"] = server.pid
            self._postgres = server.dsn
        if self._redis is not None:
            self._stack.enter_context(self._redis)
            assert self._redis.pid
            self._servers["redis"] = self._redis.pid
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in tuple(self._services):
            self.kill(name)
        self._stack.close()

    @property
    def redis_url(self) -> str:
        """The URL of the Redis; empty without one."""
        return self._redis.url if self._redis else ""

    def database(self, name: str, template: str = "") -> str:
        """Makes a database; returns its DSN, which `pgbeat+` makes a broker and result backend."""
        prefix = "pgbeat_applications_"
        source = f"{prefix}{template}" if template else "template1"
        drop = f'DROP DATABASE IF EXISTS "{prefix}{name}" WITH (FORCE)'
        for statement in (drop, f'CREATE DATABASE "{prefix}{name}" TEMPLATE "{source}"'):
            self.sql(self._postgres, statement)
        self._stack.callback(self.sql, self._postgres, drop)
        return in_database(self._postgres, f"{prefix}{name}")

    @staticmethod
    def sql(dsn: str, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Runs a statement, autocommitted; returns its rows."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            return rows_of(connection.execute(statement, parameters or None))

    def migrate(self, dsn: str, build: str = "") -> None:
        """Makes pgbeat's tables and the broker's, broken by a build if one is named."""
        broker = f"pgbeat+{dsn}"
        code = f"import celery; app = celery.Celery(broker={broker!r})"
        (self.folder / "migrated.py").write_text(code)
        self.run("pgbeat", "-A", "migrated", "--workdir", str(self.folder), "migrate")
        if build:
            self.sql(dsn, BUILDS[build].sql)

    def run(self, *command: str) -> None:
        """Runs a command to its end; raises `CalledProcessError` if it fails."""
        log = self.folder / "commands.log"
        with log.open("ab") as output:
            subprocess.run(
                command, check=True, env=self.env, cwd=self.folder, stdout=output, stderr=output
            )

    def start(self, name: str, *command: str) -> Process:
        """Starts a service of that name, in the place of one that was killed."""
        log = self.folder / f"{name}-{len(list(self.folder.glob(f'{name}-*.log')))}.log"
        self._services[name] = Process(list(command), log, self.env, self.folder)
        return self._services[name]

    def kill(self, name: str) -> None:
        """Ends a service and all that it started by SIGKILL, and forgets it."""
        process = self._services.pop(name)
        family = _family(process.pid)
        process.kill_group()
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.kill()

    def services(self) -> dict[str, int]:
        """Returns the MB that each service and server takes.

        What processes share counts once (PSS). Fails if one has ended.
        """
        for name, process in self._services.items():
            assert process.poll() is None, f"{name} has ended:\n{process.output[-3000:]}"
        running = self._servers | {name: each.pid for name, each in self._services.items()}
        return {name: round(_memory(pid) / 1e6) for name, pid in running.items()}


def _family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _memory(pid: int) -> int:
    total = 0
    for process in _family(pid):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total


def difference(before: dict[str, str], after: dict[str, str]) -> str:
    """Returns the lines that differ between two configurations, as a diff has them."""
    lines = []
    for name in sorted(before | after):
        if before.get(name) != after.get(name):
            lines += [f"-{name}={before[name]}"] if name in before else []
            lines += [f"+{name}={after[name]}"] if name in after else []
    return "\n".join(lines)


def table(results: list[Result]) -> str:
    """Returns a table with a row for each result."""
    rows = ["| | holds | services (MB) | |", "|---|---|---|---|"]
    for name, checks, services, figures in results:
        held = ", ".join(check if holds else f"NOT: {check}" for check, holds in checks.items())
        memory = ", ".join(f"{service} {size}" for service, size in services.items())
        total = f"; in all {sum(services.values())}" if services else ""
        more = ", ".join(f"{figure}: {value}" for figure, value in figures.items())
        rows.append(f"| {name} | {held} | {memory}{total} | {more} |")
    return "\n".join(rows)


__all__ = ["BROKEN", "Result", "Site", "difference", "environment", "table", "until", "version"]
