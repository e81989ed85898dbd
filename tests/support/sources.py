"""Parses the package's modules, once for all tests of a process."""

import ast
from functools import cache

from tests.support.processes import ROOT

PACKAGE = ROOT / "pgbeat"


@cache
def nodes() -> dict[str, list[ast.AST]]:
    """Returns the nodes of each module of pgbeat, by its path below the package."""
    return {
        path.relative_to(PACKAGE).as_posix(): list(ast.walk(ast.parse(path.read_text())))
        for path in PACKAGE.rglob("*.py")
    }
