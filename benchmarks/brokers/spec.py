"""What a subprocess is told: which broker, and where to note that a task ran."""

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from beats.spec import VARIABLE


@dataclass(frozen=True)
class Spec:
    """A contender's broker, a scratch folder, and the file of executions."""

    url: str
    folder: str
    #: See `brokers.executions`.
    executions: str
    #: The server's process, where it is on this machine.
    server: int | None = None
    #: The module that makes the transport known to kombu.
    transport: str = ""
    #: More of the app's settings.
    settings: dict[str, Any] = field(default_factory=dict)
    #: Options of the transport; and more of them for workers.
    options: dict[str, Any] = field(default_factory=dict)
    worker_options: dict[str, Any] = field(default_factory=dict)

    def within(self, name: str) -> Self:
        """The same for one process of several, in a folder of its own."""
        folder = Path(self.folder) / name
        folder.mkdir(exist_ok=True)
        return replace(self, folder=str(folder))

    def with_options(self, options: dict[str, Any]) -> Self:
        """The same with more options of the transport."""
        return replace(self, options=self.options | options)

    def with_settings(self, **settings: Any) -> Self:
        """The same with more of the app's settings."""
        return replace(self, settings=self.settings | settings)

    def to_json(self) -> str:
        """The text for `VARIABLE`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> Self:
        """The spec that the parent process set."""
        return cls(**json.loads(os.environ[VARIABLE]))
