"""The console below a URL of a Django project's."""

import pytest

from tests.support.django_shop import PROJECT, Shop


@pytest.mark.slow
def test_the_projects_tests_of_the_console(database: str) -> None:
    done = Shop(database).manage("test", f"{PROJECT}.shop.console_tests", "--noinput")
    assert done.returncode == 0, done.stderr
    assert "FAILED" not in done.stderr
