"""Django's own tests of the shop: what is sent in a transaction shares its fate."""

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from asgiref.sync import sync_to_async
from celery import current_app, group
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.db.transaction import TransactionManagementError, atomic
from django.test import Client, TestCase, TransactionTestCase, override_settings
from psycopg import IsolationLevel

import pgbeat
from pgbeat.config import postgres_url
from pgbeat.database import connections as sessions
from pgbeat.errors import InvalidJob, UnknownTask
from tests.support.django_project.shop.models import Order
from tests.support.django_project.shop.tasks import lose, pack, ship
from tests.support.processes import until


def sent() -> list[str]:
    """Returns the ids of the messages that others see."""
    url = postgres_url(current_app.conf.broker_url)
    with sessions.engine(url, "tests").connect() as other:
        assert other.exec_driver_sql("SELECT current_database()").scalar_one().startswith("test_")
        rows = other.exec_driver_sql(
            "SELECT payload::json -> 'headers' ->> 'id' FROM kombu_message ORDER BY id"
        )
        return [row[0] for row in rows]


class Failing(Exception):
    """Rolls a block back."""


class Clean(TransactionTestCase):
    """Tests with real commits. pgbeat's tables are not Django's, which empties its own only."""

    databases = frozenset({"default", "other"})

    def setUp(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM kombu_message; DELETE FROM pgbeat.unfinished_jobs")


class Blocks(Clean):
    def test_what_is_sent_exists_once_the_block_commits(self) -> None:
        with atomic():
            order = Order.objects.create(name="a")
            one = ship.delay(order.pk)
            two = current_app.send_task(ship.name, (order.pk,), countdown=60, priority=3)
            assert one.id and two.id
            assert sent() == []
        assert sent() == [one.id, two.id]

    def test_a_block_that_raises_sends_nothing(self) -> None:
        for _ in range(2):
            with self.assertRaises(Failing), atomic():
                ship.delay(1)
                raise Failing
        assert sent() == []
        assert not Order.objects.exists()

    def test_a_savepoint_takes_its_messages_along(self) -> None:
        with atomic():
            one = ship.delay(1)
            with self.assertRaises(Failing), atomic():
                ship.delay(2)
                raise Failing
            with atomic():
                two = ship.delay(3)
            with atomic(savepoint=False):
                three = ship.delay(4)
        assert sent() == [one.id, two.id, three.id]

    def test_a_message_may_be_the_first_statement_and_the_last(self) -> None:
        with atomic(durable=True):
            one = ship.delay(1)
        with atomic():
            list(Order.objects.iterator(chunk_size=1))  # a server-side cursor
            two = ship.delay(2)
        three = ship.delay(3)
        assert sent() == [one.id, two.id, three.id]

    def test_outside_of_a_block_it_is_sent_at_once(self) -> None:
        Order.objects.create(name="a")
        one = ship.delay(1)
        assert sent() == [one.id]

    def test_without_autocommit_it_waits_for_the_commit(self) -> None:
        transaction.set_autocommit(False)
        try:
            ship.delay(1)
            transaction.rollback()
            one = ship.delay(1)
            assert sent() == []
            transaction.commit()
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)
        assert sent() == [one.id]

    def test_a_block_in_another_database_has_nothing_to_do_with_it(self) -> None:
        with self.assertRaises(Failing), atomic("other"):
            one = ship.delay(1)
            raise Failing
        assert sent() == [one.id]
        with atomic("other"), self.assertRaises(Failing), atomic():
            ship.delay(1)
            raise Failing
        assert sent() == [one.id]

    def test_canvas(self) -> None:
        with self.assertRaises(Failing), atomic():
            group(ship.si(1), ship.si(2)).delay()
            raise Failing
        with atomic():
            (ship.si(1) | ship.si(2)).delay()
            group(ship.si(1), ship.si(2)).delay()
            assert sent() == []
        assert len(sent()) == 3

    def test_a_connection_of_the_callers_wins(self) -> None:
        with self.assertRaises(Failing), atomic():
            with current_app.connection_for_write() as own:
                one = ship.apply_async((1,), connection=own)
            raise Failing
        assert sent() == [one.id]

    def test_an_id_of_the_callers(self) -> None:
        chosen = str(uuid4())
        with atomic():
            assert ship.apply_async((1,), task_id=chosen).id == chosen
        assert sent() == [chosen]

    def test_delay_on_commit_works_as_before(self) -> None:
        with atomic():
            ship.delay_on_commit(1)
            assert sent() == []
        assert len(sent()) == 1
        with self.assertRaises(Failing), atomic():
            ship.delay_on_commit(1)
            raise Failing
        assert len(sent()) == 1

    def test_many_in_one_block(self) -> None:
        with atomic():
            ids = [ship.delay(number).id for number in range(300)]
        assert sent() == ids

    def test_a_reopened_connection(self) -> None:
        ids = []
        for _ in range(3):
            with atomic():
                ids.append(ship.delay(1).id)
            connection.close()
        assert sent() == ids

    def test_isolation_levels_are_djangos(self) -> None:
        connection.ensure_connection()
        connection.connection.isolation_level = IsolationLevel.SERIALIZABLE
        try:
            with atomic():
                one = ship.delay(1)
                with connection.cursor() as cursor:
                    cursor.execute("SHOW transaction_isolation")
                    assert cursor.fetchone() == ("serializable",)
        finally:
            connection.close()
        assert sent() == [one.id]


class Broken(Clean):
    def test_after_set_rollback_nothing_can_be_sent(self) -> None:
        with atomic():
            ship.delay(1)
            transaction.set_rollback(True)
            with self.assertRaises(TransactionManagementError):
                ship.delay(2)
        assert sent() == []

    def test_after_an_error_nothing_can_be_sent_until_the_block_ends(self) -> None:
        with atomic():
            with self.assertRaises(IntegrityError), atomic(savepoint=False):
                Order.objects.create(pk=1, name="a")
                Order.objects.create(pk=1, name="b")
            with self.assertRaises(TransactionManagementError):
                ship.delay(1)
        assert sent() == []
        assert ship.delay(1).id

    def test_an_error_in_sql_is_djangos(self) -> None:
        with self.assertRaises(DatabaseError), atomic():
            with connection.cursor() as cursor, self.assertRaises(DatabaseError):
                cursor.execute("SELECT 1 / 0")
            ship.delay(1)
        assert sent() == []

    def test_an_error_of_publishing_dooms_the_block(self) -> None:
        with atomic():
            ship.delay(1)
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL default_transaction_read_only = on")
                cursor.execute("SET TRANSACTION READ ONLY")
            with self.assertRaises(DatabaseError):
                ship.delay(2)
            with self.assertRaises(TransactionManagementError):
                Order.objects.count()
        assert sent() == []
        with atomic():
            one = ship.delay(3)
        assert sent() == [one.id]


class Jobs(Clean):
    def jobs(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pgbeat.jobs")
            return int(cursor.fetchone()[0])

    def test_a_job_exists_once_the_block_commits(self) -> None:
        with self.assertRaises(Failing), atomic():
            pgbeat.submit(ship, 1)
            raise Failing
        assert (sent(), self.jobs()) == ([], 0)
        with atomic():
            job = pgbeat.submit(ship, 1)
            assert sent() == []
        assert (sent(), self.jobs()) == ([str(job.id)], 1)
        assert job.created_at.tzinfo is not None

    def test_many_jobs(self) -> None:
        with atomic():
            ids = pgbeat.submit_many([ship.s(1), ship.s(2)])
            assert sent() == []
        assert set(sent()) == set(ids)

    def test_a_refused_job_leaves_the_block_as_it_was(self) -> None:
        with atomic():
            Order.objects.create(name="a")
            with self.assertRaises(UnknownTask):
                pgbeat.submit("nope")
            one = ship.delay(1)
        assert Order.objects.count() == 1
        assert sent() == [one.id]


class Policies(Jobs):
    def test_a_task_with_a_policy_is_a_job_once_the_block_commits(self) -> None:
        with self.assertRaises(Failing), atomic():
            pack.delay(1)
            raise Failing
        assert (sent(), self.jobs()) == ([], 0)
        with atomic():
            one = pack.delay(1)
            assert pack.delay(1).id == one.id
            assert sent() == []
        assert (sent(), self.jobs()) == ([one.id], 1)
        assert pack.delay(1).id == one.id

    def test_a_task_that_is_refused_leaves_the_block_as_it_was(self) -> None:
        with atomic():
            with self.assertRaises(InvalidJob):
                lose.delay(1)
            one = ship.delay(1)
        assert (sent(), self.jobs()) == ([one.id], 0)


class Threads(Clean):
    def run_in_thread(self, function: Callable[[], Any]) -> None:
        def body() -> None:
            try:
                function()
            finally:
                connections.close_all()

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()

    def test_another_thread_has_its_own_transactions(self) -> None:
        ids = []
        with self.assertRaises(Failing), atomic():
            self.run_in_thread(lambda: ids.append(ship.delay(1).id))
            raise Failing

        def block() -> None:
            with atomic():
                ids.append(ship.delay(2).id)

        self.run_in_thread(block)
        assert sent() == ids

    def test_in_asyncio(self) -> None:
        def block(fails: bool) -> str:
            try:
                with atomic():
                    made = ship.delay(1)
                    if fails:
                        raise Failing
            finally:
                connections.close_all()
            return str(made.id)

        async def main() -> list[str]:
            with self.assertRaises(Failing):
                await sync_to_async(block)(True)
            return [await sync_to_async(block)(False), ship.delay(2).id]

        assert asyncio.run(main()) == sent()

    def test_dead_threads_leave_no_connection(self) -> None:
        thread = threading.Thread(target=self.forgotten)
        thread.start()
        thread.join()
        gc.collect()
        until(lambda: not self.sessions())

    def forgotten(self) -> None:
        with atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET application_name = 'forgotten'")
            ship.delay(1)

    def sessions(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'forgotten'"
            )
            return int(cursor.fetchone()[0])


class Requests(Clean):
    @override_settings(DEBUG=False)
    def test_atomic_requests(self) -> None:
        client = Client(raise_request_exception=False)
        connection.settings_dict["ATOMIC_REQUESTS"] = True
        try:
            assert client.get("/order/fails").status_code == 500
            assert sent() == []
            said = client.get("/order/works").content.decode()
        finally:
            connection.settings_dict["ATOMIC_REQUESTS"] = False
        assert sent() == [said]
        assert Order.objects.count() == 1

    def test_requests_without(self) -> None:
        client = Client(raise_request_exception=False)
        assert client.get("/order/fails").status_code == 500
        assert len(sent()) == 1


class InTestCase(TestCase):
    """Django rolls back what these tests do, messages included."""

    def test_messages_vanish_with_the_test(self) -> None:
        before = sent()
        ship.delay(1)
        pgbeat.submit(ship, 2)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM kombu_message")
            assert cursor.fetchone() == (len(before) + 2,)
        assert sent() == before

    test_once_more = test_messages_vanish_with_the_test

    def test_callbacks_of_the_commit(self) -> None:
        before = sent()
        with self.captureOnCommitCallbacks(execute=True) as callbacks, atomic():
            ship.delay_on_commit(1)
        assert len(callbacks) == 1
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM kombu_message")
            assert cursor.fetchone() == (len(before) + 1,)
        assert sent() == before
