"""The Django app."""

from celery import _state
from django.apps import AppConfig
from django.core import checks as django_checks
from django.db.models.signals import pre_migrate

from pgbeat.integrations.django import NAME, checks, defaults, schema, transactions


class PgbeatConfig(AppConfig):
    """Sets up pgbeat in a Django project."""

    name = NAME
    label = "pgbeat"
    verbose_name = "pgbeat"

    def ready(self) -> None:
        """Connects what the project's Celery apps, `migrate` and `check` need."""
        for app in tuple(_state._get_active_apps()):
            defaults.equip(app)
        _state.connect_on_app_finalize(defaults.equip)
        transactions.connect()
        pre_migrate.connect(schema.upgrade, sender=self, dispatch_uid=f"{NAME}.schema")
        django_checks.register(checks.check_settings)
        django_checks.register(checks.check_schema, django_checks.Tags.database)
