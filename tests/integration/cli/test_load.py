"""`pgbeat load`."""

from datetime import timedelta

from pgbeat.beat.maintenance import load as keeper
from pgbeat.cli.operations.load import sparkline
from pgbeat.config import Settings, postgres_url
from tests.support.command_line import Sql, read, run
from tests.support.databases import connected
from tests.support.rows import make_job


def test_the_load_as_lines_and_as_json(sql: Sql, database: str) -> None:
    [(at,)] = sql("SELECT date_trunc('minute', now()) - interval '5 minutes'")
    for state in ("completed", "failed"):
        make_job(
            sql,
            state,
            task="a",
            created_at=at,
            started_at=at + timedelta(seconds=1),
            finished_at=at + timedelta(seconds=3),
        )
    with connected(database) as connection:
        keeper.keep(connection, Settings(postgres_url(database)), lambda task: "celery")
    found = read(database, "load", "--task", "a", "--json")
    assert found["total"]["completed"] == found["total"]["failed"] == 1
    assert len(found["points"]) >= 58
    shown = run(database, "load", "--task", "a", "--since", "2h").stdout
    assert "█" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_line_of_many_values_shows_the_greatest() -> None:
    assert sparkline([0, 1, 8]) == " ▂█"
    assert sparkline([1, 8, 0, 0], width=2) == "█ "
    assert sparkline([]) == ""
