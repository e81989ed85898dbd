"""Flask: the code of the how-to, as it is printed there, in processes of its own."""

import re
import sys
from pathlib import Path

import pytest

from pgbeat.config import postgres_url
from tests.support.processes import ROOT, Processes, until
from tests.support.rows import Sql

PAGE = ROOT / "docs" / "how-to" / "flask.md"
DATABASE = "postgresql+psycopg://postgres@localhost/shop"
# What the page says in words: a request that fails, and a task with callbacks.
MORE = """
from sqlalchemy.orm import Session

@flask_app.post("/failing")
def failing():
    db.session.add(Order(id=100))
    with pgbeat.in_transaction(db.session):
        confirm.delay(100)
    raise RuntimeError("no")

@celery_app.task
def confirm_first(order_id):
    with pgbeat.finish(Session(db.engine)) as session:
        session.get(Order, order_id).is_confirmed = True
    return order_id
"""


@pytest.fixture
def shop(processes: Processes, database: str, tmp_path: Path) -> Processes:
    """Has processes import the page's code as `shop`."""
    code = "".join(re.findall(r"```python.*?\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S))
    assert code.count(DATABASE) == 1
    url = postgres_url(database).render_as_string(hide_password=False)
    (tmp_path / "shop.py").write_text(code.replace(DATABASE, url) + MORE)
    processes.env["PYTHONPATH"] = f"{tmp_path}:{ROOT}"
    return processes


def ask(shop: Processes, code: str) -> None:
    """Runs requests in the app's context."""
    lines = ["from shop import *", "client = flask_app.test_client()", code]
    done = shop.run(sys.executable, "-c", "\n".join(lines))
    assert done.wait(30) == 0, done.output


def orders(sql: Sql) -> list[tuple[int, bool]]:
    return [(n, done) for n, done in sql('SELECT id, is_confirmed FROM "order" ORDER BY 1')]


@pytest.mark.slow
def test_what_a_request_sends_commits_with_its_rows(shop: Processes, sql: Sql) -> None:
    ask(
        shop,
        "with flask_app.app_context(): db.create_all()\n"
        "confirm.app.connection().channel()\n"
        "assert client.post('/orders').json == {'order': 1}\n"
        "assert client.post('/failing').status_code == 500",
    )
    assert orders(sql) == [(1, False)]
    assert sql("SELECT count(*) FROM kombu_message") == [(1,)]
    shop.worker(app="shop:celery_app").says(" ready.")
    until(lambda: orders(sql) == [(1, True)])
    ask(
        shop,
        "assert client.post('/orders').json == {'order': 2}\n"
        "with flask_app.app_context():\n"
        "    db.session.add(Order(id=3)); db.session.flush()\n"
        "    pgbeat.submit(confirm_first, 3, connection=db.session)\n"
        "    db.session.commit()\n"
        "    db.session.add_all([Order(id=4), Order(id=5)]); db.session.commit()\n"
        "(confirm_first.s(4) | confirm.si(5))().get(timeout=30)",
    )
    until(lambda: orders(sql) == [(n, True) for n in range(1, 6)])
    assert sql("SELECT state FROM pgbeat.executions") == [("completed",)]
