"""What a run leaves in its folder: all that the checks need, and nothing that they share with it.

`promised.json` is what was answered; `faults`, `rounds` and `journal` have a line of JSON for each;
`postgres-*.log` is what the servers said, `dump.sql` the database at the end.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from celery import Celery


@dataclass(frozen=True)
class Fault:
    """One fault: what, to whom (`*` for all), from when until when."""

    kind: str
    whom: str
    began: float
    ended: float


@dataclass(frozen=True)
class Line:
    """A line of the journal that the tasks write."""

    phase: str
    id: str
    at: float
    pid: int
    worker: str
    task: str


@dataclass
class Canvas:
    """A canvas whose sending was answered: the ids of its tasks, the last one's last."""

    kind: str
    ids: list[str]
    #: What the last task returns if all complete.
    value: int
    #: Tasks that are sent beside the last one if it completes.
    callbacks: list[str]
    #: The group that its first task sends as a chord's header.
    group: str | None = None

    def sender_of(self, task: str) -> str | None:
        """Returns the task at whose end a task is sent; `None` if there is none, or several."""
        order = [*self.ids, *self.callbacks]
        at = order.index(task)
        match self.kind:
            case "chain" if at > 0:
                return order[at - 1]
            case "chord of chains" if at % 2:
                return order[at - 1]
            case "chain with a chord" if 0 < at < len(order) - 1:
                return order[0]
            case "callback" if at > 0:
                return order[0]
        return None


@dataclass
class Promised:
    """What was answered, and must therefore hold."""

    #: Arguments of each job that was submitted, by its id.
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Tasks whose transaction was committed, and such whose transaction was rolled back.
    committed: set[str] = field(default_factory=set)
    rolled_back: set[str] = field(default_factory=set)
    #: Canvases of tasks with policies, tasks of those whose sending was refused, and unique tasks.
    canvases: list[Canvas] = field(default_factory=list)
    unanswered: set[str] = field(default_factory=set)
    unique: set[str] = field(default_factory=set)
    #: Schedules of one time.
    once: set[str] = field(default_factory=set)
    #: What was refused, by its kind: to be read, not checked.
    refused: dict[str, int] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        text = json.dumps(asdict(self), default=lambda each: sorted(each))
        (folder / "promised.json").write_text(text)

    @classmethod
    def load(cls, folder: Path) -> "Promised":
        kept = json.loads((folder / "promised.json").read_text())
        sets = {"committed", "rolled_back", "unanswered", "unique", "once"}
        kept |= {name: set(kept[name]) for name in sets}
        kept["canvases"] = [Canvas(**each) for each in kept["canvases"]]
        return cls(**kept)


class Record:
    """A run, as its folder and its database have it."""

    def __init__(
        self, folder: Path, sql: Callable[..., list[tuple[Any, ...]]], app: Celery
    ) -> None:
        """`sql` runs a statement with parameters in the run's database, and returns its rows.

        `app` has its results in that database.
        """
        self.folder, self.sql, self.app = folder, sql, app

    def rows(self, query: str, *parameters: Any) -> list[str]:
        """The rows of a query, each as words."""
        return [", ".join(map(str, row)) for row in self.sql(query, *parameters)]

    @cached_property
    def promised(self) -> Promised:
        return Promised.load(self.folder)

    @cached_property
    def faults(self) -> list[Fault]:
        """All faults, in the order of their ends."""
        return [Fault(**each) for each in self._lines("faults")]

    @cached_property
    def rounds(self) -> list[float]:
        """When the schedules were resumed, in seconds since the epoch: once in each round."""
        return [each["began"] for each in self._lines("rounds")]

    @cached_property
    def journal(self) -> list[Line]:
        """What the tasks wrote."""
        return [Line(**each) for each in self._lines("journal")]

    @cached_property
    def deadlocks(self) -> list[str]:
        """What Postgres has said of each deadlock."""
        logs = sorted(self.folder.glob("postgres-*.log"))
        text = "".join(each.read_text(errors="replace") for each in logs)
        return [said.partition("CONTEXT:")[0] for said in text.split("deadlock detected")[1:]]

    def counts(self) -> str:
        """How much there is to look at."""
        promised = self.promised
        kinds = Counter(fault.kind.split(" for ")[0] for fault in self.faults)
        ticks, jobs = (
            dict(self.sql(f"SELECT {of}, count(*) FROM pgbeat.{table} GROUP BY 1 ORDER BY 1"))
            for table, of in (("ticks", "outcome"), ("jobs", "state"))
        )
        return (
            f"{len(promised.jobs)} jobs submitted, {len(promised.committed)} tasks committed,"
            f" {len(promised.canvases)} canvases sent, ticks {ticks}, jobs {jobs},"
            f" faults {dict(kinds)}, refused {promised.refused}"
        )

    def _lines(self, name: str) -> list[dict[str, Any]]:
        file = self.folder / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def note(folder: Path, name: str, line: dict[str, Any]) -> None:
    with (folder / name).open("a") as file:
        file.write(json.dumps(line) + "\n")
