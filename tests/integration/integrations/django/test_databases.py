"""An entry of `DATABASES` as the URL of pgbeat's database."""

from typing import Any

import pytest

from pgbeat.config import postgres_url
from pgbeat.errors import ConfigError
from pgbeat.integrations.django.databases import url_of


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"NAME": "shop"}, "postgresql:///shop"),
        (
            {"NAME": "shop", "USER": "bea@t", "PASSWORD": "p/a:s s%", "HOST": "db", "PORT": 5433},
            "postgresql://bea%40t:p%2Fa%3As s%25@db:5433/shop",
        ),
        ({"NAME": "shop", "HOST": "/run/pg"}, "postgresql:///shop?host=%2Frun%2Fpg"),
        (
            {"NAME": "shop", "HOST": "/run/pg", "PORT": "5433", "USER": "beat"},
            "postgresql://beat@/shop?host=%2Frun%2Fpg&port=5433",
        ),
        (
            {"NAME": "shop", "HOST": "one,two", "PORT": "5432,5433"},
            "postgresql:///shop?host=one%2Ctwo&port=5432%2C5433",
        ),
        ({"NAME": "", "OPTIONS": {"service": "shop"}}, "postgresql://?service=shop"),
        (
            {"NAME": "shop", "HOST": "db", "OPTIONS": {"sslmode": "require", "connect_timeout": 3}},
            "postgresql://db/shop?connect_timeout=3&sslmode=require",
        ),
        (
            {
                "NAME": "shop",
                "OPTIONS": {
                    "pool": True,
                    "isolation_level": 2,
                    "sslcert": None,
                    "server_side_binding": True,
                },
            },
            "postgresql:///shop",
        ),
        (
            {"NAME": "shop", "OPTIONS": {"assume_role": "app role", "options": "-c work_mem=9MB"}},
            "postgresql:///shop?assume_role=app role&options=-c work_mem%3D9MB",
        ),
    ],
)
def test_an_entry_as_a_url(entry: dict[str, Any], text: str) -> None:
    rendered = url_of("default", entry).render_as_string(hide_password=False)
    assert rendered.replace("+", " ") == text
    read = postgres_url(f"pgbeat+{rendered}")
    assert read.password == entry.get("PASSWORD")
    assert read.username == entry.get("USER")


@pytest.mark.parametrize("value", [True, ["a"], object()])
def test_an_option_that_no_url_can_have_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="'sslmode'"):
        url_of("default", {"NAME": "shop", "OPTIONS": {"sslmode": value}})
