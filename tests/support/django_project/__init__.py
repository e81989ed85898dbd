"""A Django project with a Celery app, which names no broker: `DATABASES` says where."""

from tests.support.django_project.celery import app

__all__ = ["app"]
