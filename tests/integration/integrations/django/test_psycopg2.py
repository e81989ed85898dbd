"""A project whose Django uses psycopg 2, which it does where it can't import psycopg 3."""

from tests.support.django_shop import PROJECT, Shop

# pgbeat itself needs psycopg 3, so only Django is kept from finding it.
WITHOUT = """
import builtins, psycopg
imported = builtins.__import__

def without(name, given=None, *args, **more):
    if name.split(".")[0] == "psycopg" and str((given or {}).get("__name__")).startswith("django."):
        raise ImportError(name)
    return imported(name, given, *args, **more)

builtins.__import__ = without
import django
django.setup()
"""


def test_it_is_refused_in_a_transaction(database: str) -> None:
    """Before anything is sent: it would be published although the block may roll back."""
    shop = Shop(database)
    done = shop.run(
        "-c",
        WITHOUT
        + f"""
from django.db import connection, transaction
from pgbeat.errors import CannotPublish
from {PROJECT}.shop.tasks import ship

assert connection.Database.__name__ == "psycopg2"
try:
    with transaction.atomic():
        ship.delay(1)
except CannotPublish as error:
    print(error)
with connection.cursor() as cursor:
    cursor.execute("SELECT count(*) FROM kombu_message")
    print(cursor.fetchone())
ship.delay(2)  # outside of a block, pgbeat's own connection sends it
""",
    )
    assert done.returncode == 0, done.stderr
    said, count = done.stdout.splitlines()
    assert "psycopg2" in said and "needs psycopg 3" in said
    assert count == "(0,)"


def test_check_says_so(database: str) -> None:
    done = Shop(database).run(
        "-c", f"{WITHOUT}\nfrom django.core.management import call_command\ncall_command('check')"
    )
    assert "pgbeat.E003" in done.stderr and done.returncode == 1
