"""The example app `tasks`: its tasks and launchers, alone and with a real beat and worker."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import NotRegistered
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.pool import NullPool

import tasks.schedules
from pgbeat import Context, JobRequest, Skip
from pgbeat.demo import history
from pgbeat.schedules import launchers
from pgbeat.schedules import model as schedules
from tasks import app, prices, store, vocabulary
from tests.support.databases import sqlalchemy_url
from tests.support.processes import Process, Processes, until

app.loader.import_default_modules()


@pytest.fixture
def example(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Writes the example's tables and schedules into the test's database."""
    engine = create_engine(sqlalchemy_url(database), poolclass=NullPool)
    monkeypatch.setattr(store, "engine", engine)
    with engine.begin() as connection:
        tasks.schedules.load(connection)
    yield engine
    engine.dispose()


@pytest.fixture
def ask(example: Engine) -> Callable[..., Any]:
    """Returns what runs a statement on the example, and returns its rows."""

    def run(statement: str, **values: Any) -> list[tuple[Any, ...]]:
        with example.begin() as connection:
            found = connection.execute(text(statement), values)
            return [tuple(row) for row in found] if found.returns_rows else []

    return run


def decide(engine: Engine, name: str) -> JobRequest | Skip:
    """Returns what the schedule's launcher decides now; saves its cursor as beat does."""
    with engine.connect() as reader, engine.begin() as writer:

        def connect() -> Connection:
            launchers.read_only(reader, 5.0)
            return reader

        row = schedules.get(writer, name)
        now = writer.execute(text("SELECT now()")).scalar_one()
        context = Context(row, now, now, connect)
        decision = launchers.find(row.launcher)().launch(context)
        assert not isinstance(decision, list)
        writer.execute(
            text("UPDATE pgbeat.schedules SET cursor = :cursor WHERE id = :id"),
            {"cursor": json.dumps(context.cursor), "id": row.id},
        )
        return decision


def reason(decision: JobRequest | Skip) -> str:
    """Returns why it was skipped."""
    assert isinstance(decision, Skip), decision
    return decision.reason


def request(decision: JobRequest | Skip) -> JobRequest:
    assert isinstance(decision, JobRequest), reason(decision)
    return decision


def set_figures(ask: Callable[..., Any], active: int, inactive: int) -> None:
    """Leaves that many types in the vocabulary."""
    ask("DELETE FROM example.types")
    ask(
        "INSERT INTO example.types (name, category, active) "
        "SELECT 'type_' || n, 'causal', n <= :active FROM generate_series(1, :all) n",
        active=active,
        all=active + inactive,
    )


@pytest.mark.parametrize("demo", [False, True])
def test_schedules_are_loaded_again_without_harm(
    example: Engine, ask: Callable[..., Any], demo: bool
) -> None:
    ask("UPDATE pgbeat.schedules SET enabled = false WHERE name = 'epistemic'")
    for _ in range(2):
        with example.begin() as connection:
            count = tasks.schedules.load(connection, demo=demo)
        assert ask("SELECT count(*), count(cron), count(every) FROM pgbeat.schedules") == [
            (count, 0, count) if demo else (count, count, 0)
        ]
    assert ask("SELECT name FROM pgbeat.schedules WHERE NOT enabled") == [("epistemic",)]


def test_schedules_name_what_is_registered(ask: Callable[..., Any]) -> None:
    for task, launcher in ask("SELECT task, launcher FROM pgbeat.schedules"):
        name = task or launchers.find(launcher)().get_job_type()
        assert name in app.tasks, NotRegistered(name)


def test_category_refresh(example: Engine, ask: Callable[..., Any]) -> None:
    assert reason(decide(example, "category-refresh")) == "no llm_generated types"
    ask(
        "INSERT INTO example.types (name, source) VALUES "
        "('mainly_causes', 'llm_generated'), ('jointly_implies', 'llm_generated')"
    )
    launch = request(decide(example, "category-refresh"))
    assert (launch.task, launch.kwargs) == ("tasks.vocabulary.refresh_categories", {})
    assert vocabulary.refresh_categories() == {
        "integrated": 2,
        "categories": {"causal": 1, "logical": 1},
    }
    assert ask(
        "SELECT name, category, source FROM example.types WHERE name ~ '^(mainly|jointly)' "
        "ORDER BY name"
    ) == [("jointly_implies", "logical", "integrated"), ("mainly_causes", "causal", "integrated")]
    assert ask("SELECT name FROM example.categories WHERE refreshed_at IS NOT NULL") == [
        ("causal",),
        ("logical",),
    ]
    assert reason(decide(example, "category-refresh")) == "no llm_generated types"


def test_consolidation_begins_late_and_ends_late(example: Engine, ask: Callable[..., Any]) -> None:
    story = [
        (60, 5, "inactive ratio 8% < 10%"),
        (60, 10, "inactive ratio 16%, consolidates above 20%"),
        (60, 12, "inactive ratio 20%, consolidates above 20%"),
        (50, 40, "50 active types, consolidates above 50"),
        (60, 13, None),
        (60, 7, None),
        (50, 5, None),
        (60, 6, None),
        (60, 5, "inactive ratio 8% < 10%, consolidated"),
        (60, 10, "inactive ratio 16%, consolidates above 20%"),
        (0, 3, "0 active types, consolidates above 50"),
    ]
    for active, inactive, skipped in story:
        set_figures(ask, active, inactive)
        decision = decide(example, "vocab-consolidation")
        if skipped is None:
            assert request(decision).task == "tasks.vocabulary.consolidate"
        else:
            assert reason(decision) == skipped


def test_remeasurement_after_enough_changes(example: Engine, ask: Callable[..., Any]) -> None:
    assert reason(decide(example, "epistemic")) == "0 vocabulary changes < 20"
    for _ in range(3):
        vocabulary.take_in()
    assert reason(decide(example, "epistemic")) == "18 vocabulary changes < 20"
    vocabulary.take_in()
    launch = request(decide(example, "epistemic"))
    assert launch.task == "tasks.vocabulary.remeasure"
    assert launch.kwargs == {"since": 0, "until": 24}
    assert reason(decide(example, "epistemic")) == "0 vocabulary changes < 20"
    assert ask("SELECT count(*) FROM example.types WHERE measured_at IS NOT NULL") == [(0,)]
    measured = vocabulary.remeasure(**launch.kwargs)
    assert measured.pop("changes") == 24
    assert ask("SELECT sum(1) FROM example.types WHERE measured_at IS NOT NULL") == [
        (sum(measured.values()),)
    ]
    assert set(measured) == {"insufficient_data", "affirmative", "contested", "contradicted"}


def price_server(processes: Processes, monkeypatch: pytest.MonkeyPatch, fail_every: int) -> Process:
    """Runs a price server for the tasks of this process."""
    options = ("--port=0", f"--fail-every={fail_every}")
    server = processes.run(sys.executable, "-m", "tasks.price_server", *options)
    server.says("http://")
    monkeypatch.setenv("PGBEAT_PRICES_URL", server.output.split()[0])
    return server


def test_prices(
    processes: Processes, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = price_server(processes, monkeypatch, fail_every=3)
    first = prices.fetch_prices("DK1")
    assert (first["area"], first["stored"]) == ("DK1", 24)
    assert prices.fetch_prices("DK1") == first
    with pytest.raises(prices.PricesUnavailable, match="DK1: 503 Service Unavailable"):
        prices.fetch_prices("DK1")
    with pytest.raises(prices.PricesUnavailable, match="XX: 400 Bad Request"):
        prices.fetch_prices("XX")
    assert ask("SELECT area, count(*), round(avg(eur_per_mwh), 1) FROM example.prices GROUP BY 1")[
        0
    ][:2] == ("DK1", 24)
    server.terminate()
    server.wait()
    with pytest.raises(prices.PricesUnavailable, match="Connection refused"):
        prices.fetch_prices("DK1")
    monkeypatch.setenv("PGBEAT_PRICES_URL", "file:///etc")
    with pytest.raises(prices.PricesUnavailable, match="must be an http URL"):
        prices.fetch_prices("DK1")


@pytest.mark.slow
def test_the_example_at_work(
    processes: Processes, sql: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Runs as a user does: load, worker, beat; makes every schedule due."""
    price_server(processes, monkeypatch, fail_every=0)
    env = {
        "PGBEAT_URL": processes.database,
        "PGBEAT_PRICES_URL": str(processes.started[-1].output.split()[0]),
        "PGBEAT_BACKUPS": str(tmp_path / "backups"),
    }
    load = processes.run(sys.executable, "-m", "tasks.schedules", **env)
    assert load.wait(60) == 0, load.output
    worker = processes.worker(app="tasks", **env)
    processes.beat(app="tasks", **env)
    until(lambda: all(row[0] for row in sql("SELECT next_run FROM pgbeat.schedules")))
    sql("UPDATE pgbeat.schedules SET next_run = now() WHERE source = 'sql'")
    until(lambda: sql("SELECT count(*) FROM pgbeat.ticks")[0][0] >= 7, 60)
    ticks = dict(sql("SELECT schedule, coalesce(reason, error, outcome) FROM pgbeat.ticks"))
    # The condition sees the vocabulary before or after the first task took something in.
    assert ticks.pop("category-refresh") in {"no llm_generated types", "launched"}
    assert ticks.pop("epistemic") in {f"{n} vocabulary changes < 20" for n in (0, 6, 9)}
    assert ticks.pop("vocab-consolidation") in {
        "inactive ratio 8% < 10%",
        "inactive ratio 13%, consolidates above 20%",
    }
    assert ticks == dict.fromkeys(
        ("take-in", "nightly-backup", "prices-dk1", "prices-no1-when-stale"), "launched"
    )
    until(lambda: not sql("SELECT 1 FROM pgbeat.jobs WHERE state IN ('pending', 'running')"), 60)
    assert sql("SELECT schedule, state, error FROM pgbeat.jobs WHERE state <> 'completed'") == []
    assert len(list((tmp_path / "backups").iterdir())) == 1
    assert sql("SELECT area, count(*) FROM example.prices GROUP BY 1 ORDER BY 1") == [
        ("DK1", 24),
        ("NO1", 24),
    ]
    # The same worker, asked by a person.
    call = processes.celery("call", "tasks.vocabulary.remeasure", app="tasks", **env)
    assert call.wait(60) == 0, call.output
    worker.says("Task tasks.vocabulary.remeasure[")
    worker.says("succeeded", 30)
    until(lambda: sql("SELECT 1 FROM example.types WHERE epistemic_status IS NOT NULL LIMIT 1"))


def test_the_history_that_the_demo_makes_up(database: str, ask: Callable[..., Any]) -> None:
    engine = create_engine(sqlalchemy_url(database), poolclass=NullPool)
    with engine.begin() as connection:
        tasks.schedules.load(connection, demo=True)
        made = history.make_up(connection)
    engine.dispose()
    outcomes = dict(ask("SELECT outcome, count(*) FROM pgbeat.ticks GROUP BY outcome"))
    assert sum(outcomes.values()) == made > 500
    assert set(outcomes) == {"launched", "skipped"}
    [(jobs, runs, newest)] = ask(
        "SELECT count(*), (SELECT count(*) FROM pgbeat.executions), max(finished_at) < now()"
        "  FROM pgbeat.jobs WHERE state IN ('completed', 'failed')"
    )
    assert (jobs, runs, newest) == (outcomes["launched"], outcomes["launched"], True)
    areas = ask("SELECT DISTINCT kwargs ->> 'area' FROM pgbeat.jobs WHERE task LIKE '%prices'")
    assert sorted(areas) == [("DK1",), ("NO1",)], "their runs can be retried"
