"""The project's settings. `SHOP` is JSON of settings to replace."""

import json
import os
from typing import Any

from psycopg.conninfo import conninfo_to_dict

_parts = conninfo_to_dict(os.environ["TESTS_DATABASE"])


def _entry(**more: Any) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _parts.get("dbname"),
        "USER": _parts.get("user", ""),
        "PASSWORD": _parts.get("password", ""),
        "HOST": _parts.get("host", ""),
        "PORT": _parts.get("port", ""),
        **more,
    }


SECRET_KEY = "tests"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "pgbeat.integrations.django",
    "tests.support.django_project.shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
CELERY_PGBEAT_WEB_URL = "http://testserver/pgbeat"
DATABASES = {
    "default": _entry(CONN_MAX_AGE=int(os.environ.get("SHOP_MAX_AGE", "0"))),
    # Another database: what is open there has nothing to do with pgbeat's.
    "other": _entry(NAME="other", TEST={"NAME": f"test_other_{_parts.get('dbname')}"}),
}
DATABASE_ROUTERS = ["tests.support.django_project.routers.Router"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "tests.support.django_project.urls"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_RESULT_EXPIRES = None

globals().update(json.loads(os.environ.get("SHOP", "{}")))
