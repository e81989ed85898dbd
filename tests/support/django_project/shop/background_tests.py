"""Django's own tests of its tasks as pgbeat's jobs. They need Django 6."""

import subprocess
import sys
from datetime import timedelta
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync
from django.db import connection
from django.db.transaction import atomic
from django.tasks import TaskResultStatus, default_task_backend, task
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
from django.test import TransactionTestCase
from django.utils import timezone

import pgbeat
from tests.support.django_project.shop.background import attempt, fail, pack
from tests.support.django_project.shop.models import Order
from tests.support.django_project.shop.tasks import ship
from tests.support.processes import until


class Failing(Exception):
    """Rolls a block back."""


class Tasks(TransactionTestCase):
    """Tests with real commits."""

    def setUp(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM kombu_message; DELETE FROM pgbeat.jobs")

    def rows(self, columns: str) -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {columns} FROM pgbeat.jobs ORDER BY created_at")
            return list(cursor.fetchall())

    def test_a_task_is_a_job_of_the_block(self) -> None:
        with self.assertRaises(Failing), atomic():
            pack.enqueue(1)
            raise Failing
        assert self.rows("id") == []
        with atomic():
            result = pack.enqueue(1)
            assert result.status == TaskResultStatus.READY
            assert pack.get_result(result.id).enqueued_at == result.enqueued_at
        assert [str(job) for (job,) in self.rows("id")] == [result.id]
        assert self.rows("task, args, queue, priority, state") == [
            (pack.module_path, "[1]", "celery", 0, "pending")
        ]

    def test_its_options_are_the_jobs(self) -> None:
        due = timezone.now() + timedelta(hours=1)
        pack.using(run_after=due, priority=-100, queue_name="parcels").enqueue(number=1)
        assert self.rows("run_at, priority, queue, kwargs, state") == [
            (due, 0, "parcels", '{"number": 1}', "scheduled")
        ]
        attempt.enqueue()
        assert self.rows("priority, max_attempts")[1:] == [(5, 1)]

    def test_what_is_refused(self) -> None:
        for options in ({"queue_name": "nope"}, {"priority": 101}):
            with self.assertRaises(InvalidTask):
                pack.using(**options)
        with self.assertRaises(InvalidTask):
            task(lambda: None)
        with self.assertRaises(TypeError):
            pack.enqueue(object())
        assert self.rows("id") == []

    def test_it_can_be_awaited(self) -> None:
        result = async_to_sync(pack.aenqueue)(1)
        assert async_to_sync(pack.aget_result)(result.id).args == [1]

    def test_unknown_results(self) -> None:
        for unknown in ("nope", "00000000-0000-0000-0000-000000000000"):
            with self.assertRaises(TaskResultDoesNotExist):
                default_task_backend.get_result(unknown)
        with self.assertRaises(TaskResultDoesNotExist):
            default_task_backend.get_result(str(pgbeat.submit(ship, 1).id))
        with self.assertRaises(TaskResultMismatch):
            fail.get_result(pack.enqueue(1).id)

    def test_a_worker_runs_them(self) -> None:
        order = Order.objects.create(name="tea")
        results = [pack.enqueue(order.pk), attempt.enqueue(), fail.enqueue()]
        name = connection.settings_dict["NAME"]
        code = (
            "import django; django.setup()\n"
            "from django.db import connections\n"
            f"connections['default'].settings_dict['NAME'] = {name!r}\n"
            "from tests.support.django_project import app\n"
            "app.worker_main(['worker', '-P', 'solo', '-l', 'warning'])"
        )
        worker = subprocess.Popen([sys.executable, "-c", code])
        try:
            for each in results:
                until(partial(_finished, each), seconds=60)
        finally:
            worker.terminate()
            worker.wait()
        packed, attempted, failed = results
        assert packed.return_value == {"name": "tea"}
        assert attempted.return_value == [1, attempted.id]
        assert packed.started_at <= packed.finished_at
        assert (packed.attempts, packed.errors) == (1, [])
        assert failed.status == TaskResultStatus.FAILED
        [error] = failed.errors
        assert error.exception_class is LookupError
        assert "nothing to pack" in error.traceback


def _finished(result: Any) -> bool:
    result.refresh()
    return bool(result.is_finished)
