"""A sign-in link in a browser."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from pgbeat.access import sign_in_links
from tests.support.browser import Window
from tests.support.web import Web

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_link_signs_in_once_and_leaves_no_code_behind(
    window: Callable[..., Window], web: Web
) -> None:
    with web.app.state.pgbeat.transaction() as connection:
        code = sign_in_links.create(
            connection, namespace="default", actor="user:ada", scope="admin"
        )
    page = window().page
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url + str(request.headers)))
    page.goto(f"/login?next=/console/lanes#once={code}")
    page.wait_for_selector("#confirm")
    assert "ada (admin)" in page.inner_text("main")
    assert not page.context.cookies()
    page.click("text=Sign in as ada")
    page.wait_for_url("**/console/lanes")
    assert page.inner_text(".who").startswith("ada")
    assert page.evaluate("location.href + document.referrer").count(code) == 0
    assert not [each for each in sent if code in each]
    with suppress(Exception):  # playwright's: a browser doesn't send a form again by itself
        page.go_back()
    assert code not in page.url
    other = window().page
    other.goto(f"/login#once={code}")
    other.wait_for_selector("#failed")
