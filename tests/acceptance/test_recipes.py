"""Recipes: the code of the how-to, as it is printed there, on a real worker."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from pgbeat.config import postgres_url
from tests.support.command_line import Sql
from tests.support.processes import ROOT, Processes, until

PAGE = (ROOT / "docs" / "how-to" / "recipes.md").read_text(encoding="utf-8")
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
def shop(processes: Processes, database: str, tmp_path: Path) -> Processes:
    """Has processes import the page's code as `shop`."""
    code = "\n".join(re.findall(r"```python.*?\n(.*?)```", PAGE, re.S))
    assert code.count(DATABASE) == 1
    url = postgres_url(database).render_as_string(hide_password=False)
    (tmp_path / "shop.py").write_text(code.replace(DATABASE, url) + MORE)
    processes.env["PYTHONPATH"] = f"{tmp_path}:{ROOT}"
    return processes


def test_all_recipes_work(shop: Processes, sql: Sql) -> None:
    sql("CREATE TABLE orders (id int, booked int)")
    sql("INSERT INTO orders VALUES (1, 0)")
    for line in re.findall(r"^pgbeat (lanes set .*)$", PAGE, re.M):
        made = shop.run(sys.executable, "-m", "pgbeat", "-A", "shop", *shlex.split(line))
        assert made.wait(30) == 0, made.output
    shop.beat(app="shop")
    shop.worker(app="shop").says(" ready.")
    asked = shop.run(sys.executable, "-c", EVERYTHING)
    assert asked.wait(60) == 0, asked.output
    ended = {
        ("shop.import_products", "completed"): 1, ("shop.price", "completed"): 2,
        ("shop.total", "completed"): 1, ("shop.bill", "completed"): 2,
        ("shop.close_month", "completed"): 1, ("shop.index", "completed"): 1,
        ("shop.export", "completed"): 2, ("shop.book", "completed"): 1,
        ("shop.ship", "completed"): 1,
    }  # fmt: skip
    jobs = "SELECT task, state, count(*) FROM pgbeat.jobs WHERE task ~ '^shop' GROUP BY 1, 2"
    until(lambda: {(task, state): n for task, state, n in sql(jobs)} == ended, what=str(ended))
    [progress] = re.findall(r"```sql\n(.*?);?\n```", PAGE, re.S)
    found = sql(progress.replace(":id", "%s"), asked.output.split()[-1])
    assert found == [(2, 2, "coffee")]
    assert sql("SELECT booked FROM orders") == [(1,)]
    snoozes = "SELECT count(*) FROM pgbeat.executions WHERE state = 'snoozed'"
    assert sql(snoozes) == [(1,)]
    assert sql("SELECT count(DISTINCT fair_key) FROM pgbeat.jobs WHERE lane = 'exports'") == [(1,)]
