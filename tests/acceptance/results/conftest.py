"""Workers of `tests.support.apps.results`, and a client of theirs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from tests.support.processes import JournalWorkers

Sql = Callable[..., list[tuple[Any, ...]]]

APP = "tests.support.apps.results"


class Workers(JournalWorkers):
    """Workers of `tests.support.apps.results`, and what its tasks wrote down."""

    app = APP


class Finishers(Workers):
    """Workers of `tests.support.apps.finishing`."""

    app = "tests.support.apps.finishing"

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

    def finishing(self, task: str, *arguments: Any, **options: Any) -> Any:
        """Returns a signature of a task of `tests.support.apps.finishing`."""
        return self.app.signature(f"finishing.{task}", args=arguments, options=options)


@pytest.fixture
def finishers(database: str, tmp_path: Path, sql: Sql) -> Iterator[Finishers]:
    """Starts workers whose tasks insert rows, on the test's database."""
    sql("CREATE TABLE written (what text NOT NULL, n integer NOT NULL)")
    made = Finishers(database, tmp_path)
    yield made
    made.stop_all()


@pytest.fixture
def workers(database: str, tmp_path: Path) -> Iterator[Workers]:
    """Starts workers on the test's database."""
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
