"""The shop's launcher."""

from django.db import connection

import pgbeat
from tests.support.django_project.shop.models import Order
from tests.support.django_project.shop.tasks import ship


@pgbeat.launcher
class OpenOrders(pgbeat.Launcher):
    """Says how many orders are open, and in which session of the ORM's it asked."""

    task = ship.name

    def check_conditions(self, ctx: pgbeat.Context) -> pgbeat.Skip:
        open_orders = Order.objects.filter(is_shipped=False).count()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            return pgbeat.Skip(f"{open_orders} open, session {cursor.fetchone()[0]}")
