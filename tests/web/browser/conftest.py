"""Fixtures of the browser's tests: Chromium, the served app, windows."""

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.browser import Window
from tests.support.web import Web, served

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture
def address(web: Web) -> Iterator[str]:
    """Serves the web side; yields its address."""
    with served(web) as url:
        yield url


@pytest.fixture
def browser() -> Iterator[Any]:
    """Starts Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with sync_api.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def window(browser: Any, address: str) -> Iterator[Callable[..., Window]]:
    """Opens windows; nothing went wrong in them."""
    opened: list[Window] = []

    def make(**options: Any) -> Window:
        opened.append(Window(browser, address, **options))
        return opened[-1]

    yield make
    assert [each.wrong for each in opened] == [[] for _ in opened]
