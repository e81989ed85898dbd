"""What a subprocess is told: which contender, on which servers, with which schedules."""

import json
import os
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

#: The environment variable that carries a `Spec` to a subprocess, as JSON.
VARIABLE = "PGBEAT_BENCH"
#: The task that every schedule launches. It is published, never run: there are no workers.
TASK = "bench.noop"
DAY = 86_400.0


@dataclass(frozen=True)
class Fleet:
    """Schedules to seed: `count` of one interval. Times are seconds since the epoch."""

    count: int
    #: The interval of all of them, in whole seconds.
    every: float = DAY
    #: The first `due` schedules are due at `due_at`, …
    due: int = 0
    due_at: float = field(default_factory=lambda: time.time() - 5)
    #: … the others at `later_at`, …
    later_at: float = field(default_factory=lambda: time.time() + DAY)
    #: … each this much after the one before it.
    step: float = 0.0
    #: pgbeat's only: columns of `pgbeat.schedules` that all have, as SQL; `n` is the index.
    columns: dict[str, str] = field(default_factory=dict)

    def next_run(self, index: int) -> float:
        """When schedule `index` is due first."""
        return (self.due_at if index < self.due else self.later_at) + index * self.step

    def last_run(self, index: int) -> float:
        """When a scheduler that keeps the last run must have run it for that."""
        return self.next_run(index) - self.every


@dataclass(frozen=True)
class Spec:
    """A contender with its servers, a scratch folder and its schedules."""

    contender: str
    folder: str
    database: str = ""
    redis: str = ""
    #: The processes of both, where they are on this machine.
    servers: tuple[int | None, ...] = ()
    fleet: Fleet = field(default_factory=lambda: Fleet(0))
    #: Celery settings on top of the contender's own.
    settings: dict[str, Any] = field(default_factory=dict)

    def with_fleet(self, fleet: Fleet, **settings: Any) -> Self:
        """The same contender with other schedules, and Celery settings on top."""
        return replace(self, fleet=fleet, settings={**self.settings, **settings})

    def to_json(self) -> str:
        """The text for `VARIABLE`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> Self:
        """The spec that the parent process set."""
        values = json.loads(os.environ[VARIABLE])
        return cls(**{**values, "fleet": Fleet(**values["fleet"])})
