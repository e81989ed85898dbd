"""import-linter can't see what is imported by a string, so only lazy names and plug-ins are.

Nor does it count the modules of a package.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from tests.support import sources

#: Functions that import what a string names.
IMPORTERS = {
    "import_module",
    "__import__",
    "import_string",
    "import_from_cwd",
    "symbol_by_name",
    "load_module",
    "resolve_name",
    "run_module",
}
#: Where names are looked up lazily: the public ones, and the commands by their names.
ALLOWED = {"__init__.py", "cli/__init__.py"}


def importers(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields the functions of `IMPORTERS` that code names, and modules that it takes by a string.

    A module that is taken from `sys.modules` was not imported by pgbeat, unless it is pgbeat's.
    """
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in IMPORTERS:
                yield name
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from (alias.name for alias in node.names if alias.name in IMPORTERS)
        elif isinstance(node, ast.Subscript | ast.Call):
            taken = node.value if isinstance(node, ast.Subscript) else node.func
            keys = [node.slice] if isinstance(node, ast.Subscript) else node.args
            is_own = any(
                isinstance(key, ast.Constant) and str(key.value).startswith("pgbeat")
                for key in keys
            )
            if is_own and ast.unparse(taken).startswith("sys.modules"):
                yield "sys.modules"


@pytest.mark.parametrize(
    "source",
    [
        "import importlib\nimportlib.import_module('a')",
        "from importlib import import_module as load",
        "__import__('a')",
        "sys.modules['pgbeat.jobs']",
        "sys.modules.get('pgbeat.jobs')",
    ],
)
def test_an_import_by_a_string_is_found(source: str) -> None:
    assert list(importers(ast.walk(ast.parse(source))))


@pytest.mark.parametrize("source", ["from a import b", "sys.modules.get('django.db')"])
def test_what_is_none(source: str) -> None:
    assert not list(importers(ast.walk(ast.parse(source))))


def test_nothing_else_imports_by_a_string() -> None:
    assert {path for path, nodes in sources.nodes().items() if any(importers(nodes))} == ALLOWED


def test_no_folder_has_more_than_15_modules() -> None:
    modules = (path for path in sources.nodes() if path.rpartition("/")[2] != "__init__.py")
    folders = Counter(path.rpartition("/")[0] for path in modules)
    assert {folder: count for folder, count in folders.items() if count > 15} == {}
