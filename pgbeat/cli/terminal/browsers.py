"""Opens a page in the user's browser."""

import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from pgbeat.cli.terminal import printing


@contextmanager
def opened(link: str) -> Iterator[None]:
    """Opens a link in the browser; prints a remark without one.

    The browser is given a file that leads to the link and that only this user can read, since
    everybody on the machine can read the arguments of its process. The file is deleted at the end.
    """
    with TemporaryDirectory(prefix="pgbeat-") as directory:  # mode 700
        page = Path(directory, "sign-in.html")
        page.write_text(
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>pgbeat</title>'
            f'<meta http-equiv="refresh" content="0; url={escape(link)}">'
            f'<p><a href="{escape(link)}">Open the console</a></p></html>'
        )
        try:
            browser = webbrowser.get()
        except webbrowser.Error:
            printing.note("no browser was found; --link prints a link for one.")
        else:
            # Some browsers return only when they are closed.
            threading.Thread(target=browser.open, args=(page.as_uri(),), daemon=True).start()
        yield
