"""Runs commands in the Django project of the tests."""

import json
import os
import subprocess
import sys
from typing import Any

from tests.support.processes import shell

PROJECT = "tests.support.django_project"


class Shop:
    """The project on a database, with settings that replace those of its file."""

    def __init__(self, database: str, **settings: Any) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PGBEAT_")}
        self.env = {
            **kept,
            "TESTS_DATABASE": database,
            "DJANGO_SETTINGS_MODULE": f"{PROJECT}.settings",
            "SHOP": json.dumps(settings),
        }

    def run(self, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
        """Runs Python with arguments."""
        return shell(sys.executable, *arguments, base={**self.env, **env})

    def manage(self, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
        """Runs `manage.py …`."""
        return self.run("-m", "django", *arguments, **env)

    def broker(self, **env: str) -> str:
        """Returns the URL that the Celery app takes."""
        code = (
            f"import django; django.setup(); from {PROJECT} import app; print(app.conf.broker_url)"
        )
        done = self.run("-c", code, **env)
        return done.stdout.strip() or done.stderr
