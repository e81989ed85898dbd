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


@cache
def definitions(path: str, *, with_names: bool = False) -> dict[str, str]:
    """Returns the source of each function and class of a module, by its qualified name.

    `with_names` adds the assignments to single names.
    """
    text = (PACKAGE / path).read_text()
    sources: dict[str, str] = {}

    def visit(parent: ast.AST, prefix: str) -> None:
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                sources[prefix + node.name] = ast.get_source_segment(text, node) or ""
                visit(node, f"{prefix}{node.name}.")
            elif (
                with_names
                and isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
            ):
                name = prefix + node.targets[0].id
                sources[name] = ast.get_source_segment(text, node) or ""

    visit(ast.parse(text), "")
    return sources
