"""Views that publish."""

from django.http import HttpRequest, HttpResponse

from tests.support.django_project.shop.models import Order
from tests.support.django_project.shop.tasks import ship


def order(request: HttpRequest, name: str) -> HttpResponse:
    """Makes an order and has it shipped; one of that name fails afterwards."""
    made = Order.objects.create(name=name)
    sent = ship.delay(made.pk)
    if name == "fails":
        raise RuntimeError("after publishing")
    return HttpResponse(sent.id)
