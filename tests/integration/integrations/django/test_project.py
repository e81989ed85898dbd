"""The database of a Django project is its Celery app's broker, and migrated with the project."""

import re
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import scalar_row

from pgbeat.config import Settings
from tests.support.databases import sqlalchemy_url
from tests.support.django_shop import PROJECT, Shop
from tests.support.processes import ROOT


@pytest.fixture
def asked(empty_database: str) -> Iterator["psycopg.Connection[Any]"]:
    with psycopg.connect(empty_database, autocommit=True, row_factory=scalar_row) as connection:
        yield connection


@pytest.mark.slow
def test_migrate_makes_the_schema_before_the_projects_own(
    empty_database: str, asked: "psycopg.Connection[Any]"
) -> None:
    shop = Shop(empty_database)

    def is_there() -> bool:
        return asked.execute("SELECT to_regclass('pgbeat.migrations')").fetchone() is not None

    assert shop.manage("migrate", "--plan").returncode == 0
    assert not is_there()
    unmigrated = shop.manage("check", "--database", "default")
    assert "pgbeat.W004" in unmigrated.stderr, unmigrated
    done = shop.manage("migrate")
    assert "Migrated pgbeat's schema to 0" in done.stdout, done
    assert done.stderr == ""
    assert is_there()
    sent = asked.execute(
        "SELECT count(*) FROM kombu_message m JOIN kombu_queue q ON q.id = m.queue_id "
        "WHERE q.name = 'migrations'"
    )
    assert sent.fetchone() == 1
    again = shop.manage("migrate", "shop", "zero", "--fake")
    assert again.returncode == 0
    assert "pgbeat" not in again.stdout
    assert is_there(), "no migration of the project's takes the schema away"
    assert shop.manage("check", "--database", "default").stderr == ""


@pytest.mark.parametrize(
    "settings",
    [
        {"PGBEAT_DATABASE": "other"},
        {"CELERY_BROKER_URL": "pgbeat+postgresql://h/elsewhere"},
        {"CELERY_PGBEAT_URL": "postgresql://h/elsewhere", "CELERY_BROKER_URL": "redis://h"},
    ],
)
def test_only_pgbeats_database_is_upgraded(
    settings: dict[str, str], empty_database: str, asked: "psycopg.Connection[Any]"
) -> None:
    done = Shop(empty_database, **settings).manage("migrate", "contenttypes")
    assert done.returncode == 0, done
    assert asked.execute("SELECT to_regclass('pgbeat.migrations')").fetchone() is None


@pytest.mark.slow
def test_the_broker_is_the_projects_database_unless_a_setting_says_otherwise(database: str) -> None:
    own = re.sub(r"^\w+", "postgresql", sqlalchemy_url(database).replace("+psycopg", ""))
    assert Shop(database).broker().startswith(f"pgbeat+{own.partition('?')[0]}")
    assert Shop(database, CELERY_BROKER_URL="redis://h").broker() == "redis://h"
    assert Shop(database).broker(CELERY_BROKER_URL="amqp://h") == "amqp://h"
    other = Shop(database, PGBEAT_DATABASE="other").broker()
    assert other.partition("?")[0].endswith("/other")
    without = Shop(database, INSTALLED_APPS=["django.contrib.contenttypes"])
    assert without.broker() == "None"


def test_celerys_command_takes_the_projects_database_too(database: str) -> None:
    pgbeat = partial(Shop(database).run, "-m", "celery", "-A", PROJECT, "pgbeat")
    ship = (f"{PROJECT}.shop.tasks.ship", "--args", "[7]")
    added = pgbeat("add", "s", "--task", *ship, "--every", "1h")
    assert (added.returncode, added.stderr) == (0, "")
    assert pgbeat("trigger", "s").stdout.startswith("launched: job ")
    assert pgbeat("jobs", "run", *ship).returncode == 0
    mistyped = pgbeat("update", "s", "--task", f"{PROJECT}.shop.tasks.shi")
    assert f"did you mean '{ship[0]}'?" in mistyped.stderr


WITHOUT_NAMESPACE = [*(f"PGBEAT_{each.name}".upper() for each in fields(Settings)), "PGBEAT_TRAK"]
SQLITE = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, []),
        ({"PGBEAT_DATABASE": "nope"}, ["pgbeat.E002"]),
        ({"DATABASES": SQLITE}, ["pgbeat.E002"]),
        ({"CELERY_PGBEAT_LOOP_INTERVAL": -1}, ["pgbeat.E002"]),
        ({"CELERY_BROKER_TRANSPORT_OPTIONS": {"queue_tablename": "q"}}, ["pgbeat.E002"]),
        ({"CELERY_BROKER_URL": "redis://h"}, ["pgbeat.W001"]),
        ({"CELERY_BROKER_URL": "pgbeat+postgresql://h/other"}, ["pgbeat.W001", "pgbeat.W002"]),
        ({"CELERY_TASK_ALWAYS_EAGER": True}, ["pgbeat.W003"]),
        (dict.fromkeys(WITHOUT_NAMESPACE, "x"), ["pgbeat.W006"] * len(WITHOUT_NAMESPACE)),
    ],
)
def test_check_finds_mistakes(settings: dict[str, Any], found: list[str], database: str) -> None:
    done = Shop(database, **settings).manage("check")
    assert re.findall(r"pgbeat\.[EW]\d+", done.stderr) == found, done
    for name in settings.keys() & {*WITHOUT_NAMESPACE}:
        said = (
            f"{name} has no effect.\n\tHINT: It is called CELERY_{name.replace('TRAK', 'TRACK')}."
        )
        assert said in done.stderr
    assert done.returncode == any(each.startswith("pgbeat.E") for each in found)


def test_check_finds_no_celery_app(database: str, tmp_path: Path) -> None:
    settings = "SECRET_KEY = 'tests'\nINSTALLED_APPS = ['pgbeat.integrations.django']\n"
    (tmp_path / "bare.py").write_text(settings)
    env = {"DJANGO_SETTINGS_MODULE": "bare", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    assert "pgbeat.E001" in Shop(database).manage("check", **env).stderr


@pytest.mark.slow
def test_manage_py_passes_arguments_and_exit_codes(database: str) -> None:
    shop = Shop(database)
    settings = ("--settings", f"{PROJECT}.settings")
    listed = shop.manage("pgbeat", *settings, "list", "--json")
    assert (listed.returncode, listed.stdout.strip()) == (0, "[]"), listed
    unknown = shop.manage("pgbeat", "status", "nope")
    assert (unknown.returncode, "nope" in unknown.stderr) == (1, True)
    assert shop.manage("pgbeat", "lits").returncode == 2
    for arguments in (["pgbeat", "--help"], ["help", "pgbeat"]):
        said = shop.manage(*arguments)
        assert said.stdout.startswith("Usage: manage.py pgbeat "), said
    needs_tasks = shop.manage("pgbeat", "add", "s", "--task", "shop.tasks.shipp", "--every", "1h")
    assert f"{PROJECT}.shop.tasks.ship" in needs_tasks.stderr


def test_call_command(database: str) -> None:
    code = """
import django; django.setup()
from django.core.management import CommandError, call_command
call_command("pgbeat", "list", "--json")
try:
    call_command("pgbeat", "status", "nope")
except CommandError as error:
    print(error.returncode)
"""
    assert Shop(database).run("-c", code).stdout.split() == ["[]", "1"]
