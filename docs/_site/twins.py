"""Writes `llms.txt`, and each page as Markdown beside it, for programs that read.

mkdocs loads this file as a hook, after those that fill pages in. The page at `concepts/intervals/`
has its twin at `concepts/intervals.md`, so that links between pages hold between twins.
"""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.nav import Navigation
    from mkdocs.structure.pages import Page

_NAME = re.compile(r"^::: pgbeat\.([\w.]+)$", re.M)
_COMMANDS = re.compile(r"^::: mkdocs-click\n(?:    .*\n?)+", re.M)
_twins: dict[str, str] = {}
_index: list[str] = []


def on_page_markdown(markdown: str, page: "Page", **_: Any) -> None:
    """Keeps the page's text, with what other plugins fill in."""
    text = _NAME.sub(lambda match: _documented(match[1]), markdown)
    _twins[page.file.src_uri] = _COMMANDS.sub("Each command has a `--help`.\n", text)


def on_env(env: Any, config: "MkDocsConfig", **_: Any) -> Any:
    """Writes the twins, once all pages are read."""
    for uri, text in _twins.items():
        file = Path(config.site_dir, uri)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", "", *_index]
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n")
    return env


def on_nav(nav: "Navigation", **_: Any) -> "Navigation":
    """Lists the pages as the navigation does."""
    _index[:] = _listed(nav.items)
    return nav


def _listed(items: list[Any]) -> Iterator[str]:
    for item in items:
        if item.is_section:
            yield from ("", f"## {item.title}", "")
            yield from _listed(item.children)
        elif item.is_page:
            uri = item.file.src_uri
            title = item.title or Path(item.file.abs_src_path).read_text().splitlines()[0].strip(
                "# "
            )
            yield f"- [{title}]({uri})"


def _documented(path: str) -> str:
    """Returns a public name's signature and docstring."""
    module, _, name = path.rpartition(".")
    thing = attrgetter(name)(import_module(f"pgbeat.{module}".rstrip(".")))
    try:
        signature = f"{name}{inspect.signature(thing)}"
    except (TypeError, ValueError):
        signature = name
    said = inspect.getdoc(thing) or ""
    return f"### pgbeat.{path}\n\n```python\n{signature}\n```\n\n{said}\n"
