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
