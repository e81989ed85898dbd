"""The API's reference in a real browser: nothing is fetched from elsewhere, nothing goes wrong."""

from typing import Any

import pytest

from tests.support.browser import AXE, fits

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_reference(window: Any, address: str, scheme: str) -> None:
    page = window(viewport={"width": 390, "height": 800}, color_scheme=scheme).page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto("/docs")
    assert fits(page)
    page.fill("input[name=search]", "job_id}/cancel")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=status]:has-text('job_id}/cancel')")
    # What is one of few is open, its body's fields too; a model is reached by its link.
    page.wait_for_selector(".operation[open] td:has-text('the source is down')")
    page.click(".operation:has(code:text-is('/jobs/{job_id}/cancel')) dd a:has-text('FoundJob')")
    page.wait_for_selector("#model-FoundJob:visible")
    assert fits(page)
    if AXE.exists():
        page.evaluate("document.querySelectorAll('details').forEach((d, i) => d.open = i % 9 == 0)")
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run()")["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []
    assert asked
    assert all(url.startswith(address) for url in asked)
