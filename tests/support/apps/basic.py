"""Defines the app of most processes under test; `TESTS_DATABASE` is its database and broker."""

import os

import psycopg
from celery import Celery
from psycopg.types.json import Jsonb

from pgbeat import Context, Launcher, Skip, launcher
from tests.support.databases import broker_url

DATABASE = os.environ.get("TESTS_DATABASE", "postgresql://nowhere/none")

app = Celery("tests", broker=broker_url(DATABASE))
app.conf.task_ignore_result = True
app.conf.result_expires = None  # no cleanup among the schedules
app.conf.broker_connection_retry_on_startup = True
app.conf.pgbeat_loop_interval = float(os.environ.get("TESTS_LOOP_INTERVAL", "1"))
app.conf.pgbeat_condition_timeout = 2.0


@app.task(name="tests.add", shared=False)
def add(x: int = 1, y: int = 2) -> int:
    return x + y


@app.task(name="tests.note", bind=True, shared=False)
def note(self: "object", **kwargs: object) -> None:
    """Writes down that it ran, and with what, in the table `notes`."""
    with psycopg.connect(DATABASE) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS notes (id text, data jsonb, at timestamptz DEFAULT now())"
        )
        connection.execute(
            "INSERT INTO notes (id, data) VALUES (%s, %s)",
            (self.request.id, Jsonb(kwargs)),  # type: ignore[attr-defined]
        )


@launcher
class TableLauncher(Launcher):
    """Launches while the table `work` has rows that are not done."""

    task = "tests.note"

    def check_conditions(self, ctx: Context) -> bool | Skip:
        """Launches while there is work."""
        driver = ctx.connection.connection.driver_connection
        assert driver is not None
        row = driver.execute("SELECT count(*) FROM work WHERE NOT done").fetchone()
        return bool(row[0]) or Skip("no work")

    def prepare_job_data(self, ctx: Context) -> dict[str, object]:
        """Numbers the launches."""
        ctx.cursor = (ctx.cursor or 0) + 1
        return {"launch": ctx.cursor}
