"""The libraries with durable steps that are compared, each in a database of its own."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import psycopg
from beats.processes import ProcessError, last_words, read_line
from brokers import contenders
from brokers.executions import Executions
from brokers.measures import START_LIMIT, Bench, Crew
from brokers.processes import Workers
from brokers.spec import Spec
from servers import Postgres

#: Slots of the lane in which jobs sleep.
SLOTS = 100
#: The table of the rows that steps write.
_ROWS = "CREATE TABLE bench_rows (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n integer)"


class Programs(Workers):
    """Starts `durable.child` and real workers."""

    commands = "durable.child"


class Pgbeat(contenders.Pgbeat):
    """pgbeat: a prefork worker of one process, and a beat."""

    #: Which tasks its program has.
    tasks: ClassVar[tuple[str, ...]] = ("steps", "rows", "bare", "waits")

    def __init__(self, postgres: Postgres, folder: Path) -> None:
        super().__init__(postgres, folder)
        program = "durable.on_pgbeat"
        self.spec = self.spec.with_settings(program=program, include=[program])

    def reset(self) -> None:
        super().reset()
        with self.connect() as connection:
            connection.execute(_ROWS)
            lane = "INSERT INTO pgbeat.lanes (name, max_running) VALUES ('bench', %s)"
            connection.execute(lane, (SLOTS,))

    @contextmanager
    def at_work(self, bench: Bench) -> Iterator[Crew]:
        """Runs what executes tasks in the block, on a new database."""
        self.reset()
        with bench.workers(self, "prefork", 1) as crew, bench.beat(self):
            yield crew


class Peer:
    """Another library."""

    name: ClassVar[str]
    modules: ClassVar[tuple[str, ...]]
    tasks: ClassVar[tuple[str, ...]]

    def __init__(self, postgres: Postgres, folder: Path) -> None:
        self._postgres, self._database = postgres, f"pgbeat_bench_{os.getpid()}_{self.name}"
        self.spec = Spec(
            postgres.database(self._database),
            str(folder),
            str(folder / "executions"),
            settings={"program": f"durable.on_{self.name}"},
        )

    @classmethod
    def missing(cls) -> str:
        """Returns what isn't there, in words; empty when all is."""
        absent = [module for module in cls.modules if find_spec(module) is None]
        return f"not installed: {', '.join(absent)}" if absent else ""

    def reset(self) -> None:
        """Makes its database as new."""
        with psycopg.connect(self._postgres.database(self._database)) as connection:
            connection.execute(_ROWS)

    @contextmanager
    def at_work(self, bench: Bench) -> Iterator[Crew]:
        """Runs what executes tasks in the block, on a new database."""
        self.reset()
        executions = Executions(self.spec.executions)
        spec = self.spec.within("worker")
        process = bench.processes.child(spec, "work")
        try:
            if not process.stdout or not read_line(process.stdout, START_LIMIT):
                raise ProcessError(last_words(spec) or "it has not begun")
            yield Crew(self.spec, ["worker"], [process], executions)
        finally:
            bench.processes.kill(process)


class Dbos(Peer):
    """DBOS: whatever waits is a thread of the process that runs it."""

    name = "dbos"
    modules = ("dbos",)
    tasks = ("steps", "rows", "waits")


class Absurd(Peer):
    """Absurd: its worker looks for tasks every 250 ms."""

    name = "absurd"
    modules = ("absurd_sdk", "absurdctl")
    tasks = ("steps", "waits")

    def reset(self) -> None:
        super().reset()
        with psycopg.connect(self.spec.url) as connection:
            connection.execute(import_module("absurdctl").BUNDLED_SCHEMA_SQL)
            connection.execute("SELECT absurd.create_queue('default')")


Contender = Pgbeat | Peer
CONTENDERS: dict[str, type[Pgbeat] | type[Peer]] = {
    kind.name: kind for kind in (Pgbeat, Dbos, Absurd)
}
