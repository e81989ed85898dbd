"""Drives pages of the console in Chromium, and judges how they look."""

import os
from pathlib import Path
from typing import Any

#: axe-core's script, which finds what keeps people out.
AXE = Path(os.environ.get("AXE", "node_modules/axe-core/axe.min.js"))


class Window:
    """A page of the browser, and what went wrong in it."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        context = browser.new_context(base_url=address, **options)
        context.set_default_timeout(60_000)
        self.page = context.new_page()
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", self._heard)

    def _heard(self, message: Any) -> None:
        # A form that was wrong is answered by 422, which the browser remarks on.
        if message.type == "error" and "422" not in message.text:
            self.wrong.append(message.text)

    def sign_in(self, token: str) -> Any:
        """Signs in, by the keyboard alone, and goes to the schedules."""
        self.page.goto("/")
        self.page.wait_for_selector("#token:focus")
        self.page.keyboard.type(token)
        self.page.keyboard.press("Enter")
        self.page.wait_for_selector("nav [aria-current]:has-text('Overview')")
        self.page.goto("/console/schedules")
        return self.page


def fits(page: Any) -> bool:
    """Returns whether nothing is wider than the window."""
    width, room = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    return bool(width <= room)
