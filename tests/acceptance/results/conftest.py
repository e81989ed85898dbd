"""Workers of `tests.support.apps.results`, and a client of theirs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from tests.support.processes import JournalWorkers

APP = "tests.support.apps.results"


class Workers(JournalWorkers):
    """Workers of `tests.support.apps.results`, and what its tasks wrote down."""

    app = APP


class Finishers(Workers):
    """Workers of `tests.support.apps.finishing`, and a client of theirs."""

    app = "tests.support.apps.finishing"
    client: "Client"

    def sign(self, task: str, *arguments: Any, **options: Any) -> Any:
        return self.client.app.signature(f"finishing.{task}", args=arguments, options=options)

    def rows(self) -> list[tuple[str, int]]:
        """Returns what tasks have written, in order."""
        return [(what, n) for what, n in self.sql("SELECT what, n FROM written ORDER BY 1, 2")]

    def is_quiet(self) -> bool:
        """Returns whether there is no message left."""
        return self.sql("SELECT count(*) FROM kombu_message") == [(0,)]

    def deaths(self) -> int:
        """Returns how many processes have killed themselves."""
        return len(list(self.folder.glob("death-*")))


class Client:
    """An app that knows the workers' tasks by name."""

    def __init__(self, database: str) -> None:
        url = f"pgbeat+{database}"
        self.app = Celery("client", broker=url, backend=url, set_as_current=False)

    def __getattr__(self, task: str) -> Callable[..., Any]:
        """Returns what makes signatures of a task."""

        def sign(*arguments: Any, **options: Any) -> Any:
            return self.app.signature(f"results.{task}", args=arguments, options=options)

        return sign


@pytest.fixture
def finishers(database: str, tmp_path: Path, client: Client) -> Iterator[Finishers]:
    """Starts workers whose tasks insert rows, on the test's database."""
    made = Finishers(database, tmp_path)
    made.client = client
    made.sql("CREATE TABLE written (what text NOT NULL, n integer NOT NULL)")
    yield made
    made.stop_all()


@pytest.fixture
def workers(database: str, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(database, tmp_path)
    yield made
    made.stop_all()


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    """Calls the workers' tasks."""
    made = Client(database)
    made.app.set_current()  # Celery freezes groups with the app that is current
    yield made
    made.app.close()
