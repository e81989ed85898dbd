"""Integrates pgbeat with Django: `INSTALLED_APPS += ["pgbeat.integrations.django"]`.

The project's Celery apps then use the project's database as their broker unless their settings name
another, `manage.py migrate` upgrades pgbeat's schema, `manage.py check` finds mistakes, and what is
published inside `transaction.atomic()` exists if and only if the block commits.

Celery's command imports this module for each app, so it imports nothing heavy.
"""

import os
from typing import Any

#: The entry of `INSTALLED_APPS`.
NAME = "pgbeat.integrations.django"


def follow_apps() -> None:
    """Makes Celery apps that are made from now on use the database of their Django project.

    Those that exist when Django is set up get it by `pgbeat.integrations.django.apps`.
    """
    from celery.app.base import Celery

    Celery.builtin_fixups.add(f"{NAME}:fixup")


def fixup(app: Any) -> None:
    """Gives a Celery app the broker of its Django project, as a fixup of Celery's.

    Apps that exist when Django is set up get it from there.
    """
    if os.environ.get("DJANGO_SETTINGS_MODULE"):
        from pgbeat.integrations.django import defaults

        defaults.equip(app)
