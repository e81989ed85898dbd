"""The harness without Docker: a Postgres of its own, and adapters as plain processes.

Everything else is the harness's. It replaces the four functions that call `docker compose`, and the
builders and launchers of `ADAPTERS`.
"""

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from pgbeat.testing.embedded import child_command, places

#: For a server whose package lacks the extension, which the harness wants: it tells nothing.
_STUB = {
    "pgstattuple.control": "default_version = '0'\nrelocatable = true\n",
    "pgstattuple--0.sql": """
CREATE FUNCTION pgstattuple(text, OUT dead_tuple_percent float8, OUT free_percent float8)
RETURNS SETOF record LANGUAGE sql AS 'SELECT NULL::float8, NULL::float8 WHERE false';
CREATE FUNCTION pgstatindex(text, OUT avg_leaf_density float8, OUT leaf_fragmentation float8)
RETURNS SETOF record LANGUAGE sql AS 'SELECT NULL::float8, NULL::float8 WHERE false';
""",
}


class Server:
    """The Postgres that the harness's `docker compose` would run, on the same port."""

    def __init__(self, folder: Path, programs: Path | None, configuration: Path, port: int) -> None:
        self._folder, self._port = folder, port
        self._owner = places.server_user(folder)
        places.make_folder(folder, self._owner)
        self._programs = places.reachable(programs or places.programs(), folder, self._owner)
        self._data = folder / "data"
        shutil.copy(configuration, folder / "postgresql.conf")
        self._stub = folder / "stub"
        (self._stub / "extension").mkdir(parents=True, exist_ok=True)
        for name, text in _STUB.items():
            (self._stub / "extension" / name).write_text(text)

    def start(self) -> None:
        """Starts it, on a new cluster unless there is one."""
        if not self._data.exists():
            places.make_private(self._data, self._owner)
            self._run("initdb", "-U", "bench", "--auth=trust", "--encoding=UTF8", "--locale=C")
        settings = {
            "config_file": self._folder / "postgresql.conf",
            "hba_file": self._data / "pg_hba.conf",
            "listen_addresses": "localhost",
            "unix_socket_directories": self._data,
            "port": self._port,
            **self._extensions(),
        }
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self._run("pg_ctl", "-w", "-l", str(self._data / "log"), "-o", options, "start")

    def _extensions(self) -> dict[str, str]:
        """Returns where the stub is, for a server that can look elsewhere than in its package."""
        said = subprocess.check_output([self._programs / "postgres", "--version"], text=True)
        major = int(re.findall(r"\d+", said)[0])
        return {"extension_control_path": f"'$system:{self._stub}'"} if major >= 18 else {}

    def stop(self) -> None:
        """Stops it as `docker compose stop` does, by SIGINT; the data stay."""
        self._run("pg_ctl", "-w", "-m", "fast", "stop", check=False)

    def remove(self) -> None:
        """Stops it and removes its data, unless `KEEP_DB` is set."""
        if not os.environ.get("KEEP_DB"):
            self.stop()
            shutil.rmtree(self._data, ignore_errors=True)

    def _run(self, program: str, *arguments: str, check: bool = True) -> None:
        command = [str(self._programs / program), "-D", str(self._data), *arguments]
        subprocess.run(
            child_command(command, owner=self._owner),
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            check=check,
        )


def install(adapters: Any, orchestrator: Any, folder: Path, programs: Path | None) -> None:
    """Replaces what needs Docker."""
    harness = adapters.SCRIPT_DIR
    server = Server(folder, programs, harness / "postgres.conf", adapters.PG_PORT)
    orchestrator.start_postgres = lambda image: server.start()
    orchestrator.stop_postgres = lambda image: server.remove()
    orchestrator._compose_stop_postgres = lambda image: server.stop()
    orchestrator._compose_start_postgres = lambda image: server.start()
    native = {
        "pgbeat": (None, [sys.executable, "main.py"]),
        "procrastinate": (["uv", "sync"], [".venv/bin/python", "main.py"]),
        "absurd": (["uv", "sync"], [".venv/bin/python", "main.py"]),
        "pgboss": (["npm", "ci", "--omit=dev"], ["node", "main.js"]),
    }
    for system, (build, run) in native.items():
        entry = adapters.ADAPTERS[system]
        entry.builder = partial(_build, build, entry.bench_dir)
        entry.launcher = partial(_launch, adapters, run, entry.bench_dir)


def _build(command: list[str] | None, folder: Path, skip: bool) -> None:
    if command and not skip:
        subprocess.run(command, cwd=folder, stdout=sys.stderr, check=True)


def _launch(adapters: Any, command: list[str], folder: Path, manifest: Any, given: Any) -> Any:
    program = folder / command[0]
    argv = [str(program) if program.exists() else command[0], *command[1:]]
    environment = adapters._base_env(manifest, given)
    return adapters.LaunchSpec(argv=argv, env=environment, cwd=str(folder))
