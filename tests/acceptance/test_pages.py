"""Recipes, tutorials and durable steps: their code, as it is printed there, on real workers."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from pgbeat.config import postgres_url
from tests.support.command_line import Sql
from tests.support.processes import ROOT, Processes, until

RECIPES = (ROOT / "docs" / "how-to" / "recipes.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "tutorial" / "lanes.md").read_text(encoding="utf-8")
ORDER = (ROOT / "docs" / "tutorial" / "order.md").read_text(encoding="utf-8")
STEPS = (ROOT / "docs" / "concepts" / "durable-steps.md").read_text(encoding="utf-8")
DATABASE = "postgresql+psycopg://postgres@localhost/shop"
# What the page leaves to its readers: an API that has enough of the first call.
MORE = """
from types import SimpleNamespace

app.conf.pgbeat_track = "all"
statuses = [200, 429]

def call_api(page):
    return SimpleNamespace(status_code=statuses.pop(), headers={"Retry-After": "1"})
"""
EVERYTHING = """
from shop import *

imported = import_products.delay(["tea", "coffee"])
assert price_all(["tea", "coffee"]).get(timeout=30) == 9
bill_all(["ada", "bea"])
index.delay(1)
export_all("acme", ["orders", "stock"])
book.delay(1)
imported.get(timeout=30)
print(imported.id)
"""


@pytest.fixture
def shop(processes: Processes, tmp_path: Path) -> Processes:
    """Has processes import from the test's folder."""
    processes.env["PYTHONPATH"] = f"{tmp_path}:{ROOT}"
    return processes


def url_of(database: str) -> str:
    return postgres_url(database).render_as_string(hide_password=False)


def set_lanes(shop: Processes, page: str) -> None:
    """Runs the page's commands that make lanes."""
    for line in re.findall(r"^(?:\$ )?pgbeat .*?(lanes set .*)$", page, re.M):
        run(shop, line)


def run(shop: Processes, line: str) -> None:
    """Runs a command of pgbeat's, with the app."""
    command = shop.run(sys.executable, "-m", "pgbeat", "-A", "shop", *shlex.split(line))
    assert command.wait(30) == 0, command.output


def test_all_recipes_work(shop: Processes, database: str, tmp_path: Path, sql: Sql) -> None:
    code = "\n".join(re.findall(r"```python.*?\n(.*?)```", RECIPES, re.S))
    assert code.count(DATABASE) == 1
    (tmp_path / "shop.py").write_text(code.replace(DATABASE, url_of(database)) + MORE)
    sql("CREATE TABLE orders (id int, booked int)")
    sql("INSERT INTO orders VALUES (1, 0)")
    set_lanes(shop, RECIPES)
    shop.beat(app="shop")
    shop.worker(app="shop").says(" ready.")
    asked = shop.run(sys.executable, "-c", EVERYTHING)
    assert asked.wait(60) == 0, asked.output
    ended = {
        ("shop.import_products", "completed"): 1,
        ("shop.price", "completed"): 2,
        ("shop.total", "completed"): 1,
        ("shop.bill", "completed"): 2,
        ("shop.close_month", "completed"): 1,
        ("shop.index", "completed"): 1,
        ("shop.export", "completed"): 2,
        ("shop.book", "completed"): 1,
        ("shop.ship", "completed"): 1,
    }
    jobs = "SELECT task, state, count(*) FROM pgbeat.jobs WHERE task ~ '^shop' GROUP BY 1, 2"
    until(lambda: {(task, state): n for task, state, n in sql(jobs)} == ended, what=str(ended))
    [progress] = re.findall(r"```sql\n(.*?);?\n```", RECIPES, re.S)
    found = sql(progress.replace(":id", "%s"), asked.output.split()[-1])
    assert found == [(2, 2, "coffee")]
    assert sql("SELECT booked FROM orders") == [(1,)]
    snoozes = "SELECT count(*) FROM pgbeat.executions WHERE state = 'snoozed'"
    assert sql(snoozes) == [(1,)]
    assert sql("SELECT count(DISTINCT fair_key) FROM pgbeat.jobs WHERE lane = 'exports'") == [(1,)]


def test_the_tutorials_lane_limits_four_processes(
    shop: Processes, database: str, tmp_path: Path, sql: Sql
) -> None:
    for name, code in re.findall(r'```python title="([\w.]+)".*?\n(.*?)```', TUTORIAL, re.S):
        code = code.replace("postgresql://postgres@localhost/shop", url_of(database))
        (tmp_path / name).write_text(code)  # the app again, once it has a lane
    set_lanes(shop, TUTORIAL)
    shop.worker("-P", "prefork", "-c", "4", app="shop").says(" ready.")
    assert shop.run(sys.executable, str(tmp_path / "order.py")).wait(30) == 0
    counts = "SELECT state, count(*) FROM pgbeat.jobs WHERE lane = 'reports' GROUP BY 1"
    until(lambda: ("running", 2) in sql(counts))
    run(shop, "lanes set reports --limit 4")
    until(lambda: ("running", 4) in sql(counts))


def test_an_order_with_payment(shop: Processes, database: str, tmp_path: Path, sql: Sql) -> None:
    """Also that of the page about steps, which sleeps for a shorter time."""
    for name, code in re.findall(r'```python title="([\w.]+)".*?\n(.*?)```', ORDER, re.S):
        code = code.replace("pgbeat+postgresql://postgres@localhost/shop", f"pgbeat+{DATABASE}")
        (tmp_path / name).write_text(code.replace(DATABASE, url_of(database)))
    [settle] = re.findall(r"```python\n(.*?)```", STEPS, re.S)
    with (tmp_path / "shop.py").open("a") as app:
        app.write("\n\ncharge = print\n\n\n" + settle.replace("1 day", "0.1 seconds"))
    [tables] = re.findall(r"^psql .* -c '(.*)'$", ORDER, re.M)
    for statement in tables.split(";"):
        sql(statement)
    [orders] = re.findall(r"^\$ python -c '(.*)'$", ORDER, re.M)
    shop.beat(app="shop")
    first = shop.worker(app="shop")
    first.says(" ready.")
    made = shop.run(sys.executable, "-c", orders)
    assert made.wait(60) == 0, made.output
    job = made.output.split()[-1]
    waits = "SELECT message #>> '{waits_for,key}' FROM pgbeat.unfinished_jobs"
    until(lambda: sql(waits) == [("paid/17",)])
    first.kill_group()
    assert shop.run(sys.executable, str(tmp_path / "paid.py"), "17").wait(60) == 0
    second = shop.worker(app="shop")
    second.says(" ready.")
    state = "SELECT state FROM pgbeat.jobs WHERE id = %s"
    until(lambda: sql(state, job) == [("completed",)], 60)
    assert shop.run(sys.executable, str(tmp_path / "paid.py"), "17").wait(60) == 0
    printed = first.output + second.output
    assert printed.count("Bill for order 17") == printed.count("Shipping order 17") == 1
    assert sql("SELECT id FROM sales") == [(17,)]
    shown = shop.run(sys.executable, "-m", "pgbeat", "-A", "shop", "jobs", "show", job)
    assert shown.wait(60) == 0, shown.output
    trace = " ".join(shown.output.split())
    for phase in ("step bill", "waiting for event paid/17", "step book", "sleeping packing"):
        assert phase in trace
    assert '→ {"bill": "B-17"}' in trace

    code = "import pgbeat, shop; shop.settle.delay(18); pgbeat.emit('delivered/18')"
    assert shop.run(sys.executable, "-c", code).wait(60) == 0
    states = "SELECT DISTINCT state FROM pgbeat.jobs WHERE task = 'shop.settle'"
    until(lambda: sql(states) == [("completed",)], 60)
    assert sql("SELECT id FROM sales ORDER BY 1") == [(17,), (18,)]
