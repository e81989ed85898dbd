"""The pages of the admin site, and their models."""

import pytest

from tests.support.django_shop import PROJECT, Shop


@pytest.mark.slow
def test_the_projects_tests_of_the_pages(database: str) -> None:
    done = Shop(database).manage("test", f"{PROJECT}.shop.admin_tests", "--noinput")
    assert done.returncode == 0, done.stderr
    assert "FAILED" not in done.stderr


def test_models_make_no_migrations(database: str) -> None:
    done = Shop(database).manage("makemigrations", "--dry-run")
    assert done.returncode == 0, done
    assert "pgbeat" not in done.stdout.lower()


def test_nothing_is_shown_of_tables_elsewhere(database: str) -> None:
    code = """
import django; django.setup()
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import RequestFactory
request = RequestFactory().get("/")
request.user = User(is_superuser=True, is_active=True)
print(*(page.has_module_permission(request) or page.has_view_permission(request)
        for model, page in admin.site._registry.items() if model._meta.app_label == "pgbeat"))
"""
    elsewhere = Shop(database, CELERY_BROKER_URL="pgbeat+postgresql://h/elsewhere")
    assert elsewhere.run("-c", code).stdout.split() == ["False"] * 4
    assert Shop(database).run("-c", code).stdout.split() == ["True"] * 4
