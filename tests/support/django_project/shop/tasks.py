"""The shop's tasks."""

from celery import shared_task

from tests.support.django_project.shop.models import Order


@shared_task
def ship(number: int) -> int:
    """Ships an order, which must be there."""
    order = Order.objects.get(pk=number)
    order.is_shipped = True
    order.save()
    return number


@shared_task(pgbeat={"unique": True})
def pack(number: int) -> None:
    """Packs an order, once at a time."""


@shared_task(pgbeat={"lane": "missing"})
def lose(number: int) -> None:
    """Can't be sent."""
