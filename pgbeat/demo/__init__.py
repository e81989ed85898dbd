"""`pgbeat demo`: runs an embedded Postgres, a worker and two beats, and shows their ticks."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from sqlalchemy import Connection

from pgbeat.database import connections
from pgbeat.database.migrations import migrate
from pgbeat.demo import history
from pgbeat.demo.children import Children
from pgbeat.demo.show import Lines, LiveTable, say
from pgbeat.demo.watch import LOCK_KEY, Observer
from pgbeat.dev import processes
from pgbeat.errors import PgbeatError
from pgbeat.testing import embedded

#: Seconds between two queries.
_PAUSE = 0.25
#: The packages of the web side; without them there is no console.
_WEB = ("fastapi", "jinja2", "multipart", "uvicorn")
#: The console's port; another one if it is taken.
_PORT = 8080
#: The lane of the example's reports: two at a time, and one of a tenant.
_LANE = ("reports", "--limit=2", "--limit-per", "kwargs.tenant", "1")
#: Each demo has a new database, which need not survive a power cut.
_SETTINGS = {"timezone": "UTC", "fsync": "off"}


def run(
    seconds: float | None = None, folder: Path | None = None, console: Console | None = None
) -> int:
    """Runs the demo until interrupted, or for some seconds after a beat leads.

    Returns the exit status: with `seconds`, 0 only if launched, skipped and failed ticks and a
    completed job were seen. All processes end with it. Raises `PgbeatError` if one doesn't start,
    or ends early.
    """
    console = console or Console()
    show: LiveTable | Lines = LiveTable(console) if console.is_terminal else Lines(console)
    seen = Observer()
    try:
        with (
            processes.interruptible() as interruption,
            _everything(folder, console) as (connection, children),
            show,
        ):
            while not (interruption.came or seen.is_over(seconds)):
                seen.look(connection, children)
                show.update(seen)
                time.sleep(_PAUSE)
    except KeyboardInterrupt:
        pass
    say(console, seen.summary())
    if seconds is None:
        return 0
    missing = seen.missing()
    if missing:
        say(console, f"Not seen: {', '.join(missing)}.")
    return 1 if missing else 0


@contextmanager
def _everything(folder: Path | None, console: Console) -> Iterator[tuple[Connection, Children]]:
    """Runs the server and all processes while the block runs."""
    folder = (folder or embedded.default_folder()).absolute()
    say(console, f"Starting Postgres in {folder}")
    with embedded.server(folder, _SETTINGS) as server:
        url = server.create_database("pgbeat", fresh=True)
        migrate.upgrade(url)
        dsn = server.dsn("pgbeat")
        with Children(folder, _environment(dsn, folder)) as children:
            children.run("schedules", "tasks.schedules", "--demo")
            with connections.engine(url, "pgbeat demo").begin() as connection:
                history.make_up(connection)
            prices = children.start("prices", "tasks.price_server", "--port=0", "--fail-every=4")
            children.environment["PGBEAT_PRICES_URL"] = prices
            celery = ("celery", "-A", "tasks")
            pgbeat = (*celery, "pgbeat")
            children.run("lane", *pgbeat, "lanes", "set", *_LANE)
            children.start("worker", *celery, "worker", "--concurrency=4", "--loglevel=info")
            for number in (1, 2):
                beat = ("beat", "-S", "pgbeat.Scheduler", "--loglevel=info")
                children.start(f"beat {number}", *celery, *beat)
            if all(map(find_spec, _WEB)):
                children.start(
                    "web", *pgbeat, "web", "--demo", f"--port={processes.free_port(_PORT)}"
                )
            children.start("customers", "tasks.customers")
            psql = "psql" if shutil.which("psql") else str(server.programs / "psql")
            say(console, f"  look inside: {psql} '{dsn}'")
            say(console, f"  logs:        {folder}/*.log")
            say(console, "One worker and two beats are starting; Ctrl-C ends them.")
            with connections.engine(url, "pgbeat demo").connect() as connection:
                try:
                    yield connection.execution_options(isolation_level="AUTOCOMMIT"), children
                finally:
                    say(console, "Stopping; Ctrl-C again doesn't wait for the worker.")


def _environment(dsn: str, folder: Path) -> dict[str, str]:
    """Returns the children's environment: without the user's settings, and with the example."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "CELERY_"))}
    path = [str(_example()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {
        "PGBEAT_URL": dsn,
        "PGBEAT_LOCK_KEY": str(LOCK_KEY),
        "PGBEAT_BACKUPS": str(folder / "backups"),
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
    }


def _example() -> Path:
    """Returns the folder with the example's package `tasks`: in the wheel, or in a checkout."""
    here = Path(__file__).resolve().parent.parent
    for root in (here / "_example", here.parent):
        if (root / "tasks" / "price_server.py").exists():
            return root
    raise PgbeatError("the example app `tasks` is missing from this installation")
