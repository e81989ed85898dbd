"""Tasks of Django's own kind."""

from typing import Any

from django.tasks import task

from tests.support.django_project.shop.models import Order


@task
def pack(number: int) -> dict[str, Any]:
    """Packs an order, which must be there."""
    return {"name": Order.objects.get(pk=number).name}


@task(takes_context=True, priority=5)
def attempt(context: Any) -> list[Any]:
    return [context.attempt, context.task_result.id]


@task
async def fail() -> None:
    raise LookupError("nothing to pack")
