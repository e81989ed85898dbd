"""Django's tasks as jobs."""

import django
import pytest

from tests.support.django_shop import PROJECT, Shop

TASKS = {
    "default": {
        "BACKEND": "pgbeat.integrations.django.task_backend.Backend",
        "QUEUES": ["default", "parcels"],
    }
}


@pytest.mark.skipif(django.VERSION < (6,), reason="django.tasks came with Django 6.0")
def test_the_projects_tests_of_its_tasks(database: str) -> None:
    shop = Shop(
        database,
        TASKS=TASKS,
        CELERY_TASK_IGNORE_RESULT=False,
        CELERY_RESULT_BACKEND="pgbeat",
        CELERY_PGBEAT_JOB_MAX_ATTEMPTS=1,
        CELERY_IMPORTS=["pgbeat.worker", f"{PROJECT}.shop.background"],
    )
    done = shop.manage("test", f"{PROJECT}.shop.background_tests", "--noinput")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(django.VERSION >= (6,), reason="for older versions")
def test_older_versions_say_what_is_missing(database: str) -> None:
    done = Shop(database).run("-c", "import pgbeat.integrations.django.task_backend")
    assert "ImproperlyConfigured: " in done.stderr
    assert "needs Django 6.0 or newer" in done.stderr.splitlines()[-1]
