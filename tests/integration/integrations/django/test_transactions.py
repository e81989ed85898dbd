"""What is sent inside Django's `atomic()` exists if and only if the block commits."""

import pytest

from tests.support.django_shop import PROJECT, Shop
from tests.support.processes import Processes, until
from tests.support.rows import Sql

_KILLED = """
import os
import django; django.setup()
from django.db.transaction import atomic
from tests.support.django_project.shop.models import Order
from tests.support.django_project.shop.tasks import ship
with atomic():
    ship.delay(Order.objects.create(name="kept").pk)
try:
    with atomic():
        ship.delay(Order.objects.create(name="lost").pk)
        raise RuntimeError
except RuntimeError:
    pass
block = atomic()
block.__enter__()
ship.delay(Order.objects.create(name="open").pk)
os._exit(9)
"""


@pytest.mark.slow
def test_djangos_own_tests_pass_in_its_test_databases(database: str) -> None:
    done = Shop(database).manage("test", f"{PROJECT}.shop", "--noinput")
    assert done.returncode == 0, done.stderr
    assert "Ran 0 tests" not in done.stderr


@pytest.mark.slow
def test_tests_in_parallel_have_their_own_brokers(database: str) -> None:
    labels = (f"{PROJECT}.shop.tests.Jobs", f"{PROJECT}.shop.tests.Requests")
    done = Shop(database).manage("test", *labels, "--noinput", "--parallel", "2")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_workers_get_what_a_killed_process_committed(
    database: str, processes: Processes, sql: Sql
) -> None:
    shop = Shop(database)
    assert shop.manage("migrate").returncode == 0
    killed = shop.run("-c", _KILLED)
    assert killed.returncode == 9, killed
    processes.worker(app=PROJECT, SHOP="{}")
    until(lambda: sql("SELECT 1 FROM shop_order WHERE is_shipped"))
    assert sql("SELECT name FROM shop_order") == [("kept",)]
    until(
        lambda: (
            sql(
                "SELECT count(*) FROM kombu_message m JOIN kombu_queue q "
                "ON q.id = m.queue_id WHERE q.name = 'celery'"
            )
            == [(0,)]
        )
    )
