"""Models hold in every state, broken variants fail, and each step names code that is there."""

import ast
import re
from functools import cache

import pytest

from tests.models import MODELS
from tests.models.checker import Verdict, check
from tests.support.processes import ROOT

PACKAGE = ROOT / "pgbeat"
PAGE = (ROOT / "docs/proof/models.md").read_text()
VARIANTS = [(name, variant) for name, module in MODELS.items() for variant in module.VARIANTS]


@cache
def explored(name: str) -> Verdict:
    return check(MODELS[name].model())


@pytest.mark.parametrize("name", MODELS)
def test_the_protocol_holds_in_every_state(name: str) -> None:
    verdict = explored(name)
    assert verdict.broken is None, "\n".join([verdict.broken, *verdict.trace])
    row = re.search(rf"^\| `{name}` .*$", PAGE, re.M)
    assert row is not None and f"| {verdict.states:,} |" in row[0], f"{verdict.states:,} states"


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_a_broken_variant_fails(name: str, variant: str) -> None:
    verdict = check(MODELS[name].model(variant), MODELS[name].VARIANTS[variant])
    assert verdict.broken is not None and verdict.trace


@pytest.mark.parametrize("name", MODELS)
def test_each_invariant_is_broken_by_a_variant(name: str) -> None:
    model = MODELS[name].model()
    assert set(MODELS[name].VARIANTS.values()) >= {*model.always, *model.at_rest}


@pytest.mark.parametrize("name", MODELS)
def test_each_step_stands_for_code_that_is_there(name: str) -> None:
    """`path: name ~ words`: the name is in the file, and the words in what it names."""
    for step in explored(name).names:
        if not step.startswith("("):
            where, _, words = step.partition(" ~ ")
            path, _, named = where.partition(": ")
            source = _source(path, named)
            assert source, f"{where} is not there"
            assert words in " ".join(source.split()), f"{where} no longer says: {words}"


@cache
def _source(path: str, name: str) -> str:
    """Returns the source of a function or constant, a statement, or an SQL function."""
    if path == "database/migrations":
        scripts = sorted((PACKAGE / path / "versions").rglob("*.sql"))
        begin = f"CREATE (?:OR REPLACE )?FUNCTION {re.escape(name)}\\(.*?^\\$\\$;"
        found = [re.findall(begin, script.read_text(), re.M | re.S) for script in scripts]
        return next((functions[-1] for functions in reversed(found) if functions), "")
    text = (PACKAGE / path).read_text()
    if path.endswith(".sql"):
        parts = dict(re.findall(r"^-- name: (\w+)$(.*?)(?=^-- name: |\Z)", text, re.M | re.S))
        return parts.get(name, "") if name else text
    return _definitions(path).get(name, "")


@cache
def _definitions(path: str) -> dict[str, str]:
    text = (PACKAGE / path).read_text()
    found: dict[str, str] = {}

    def visit(parent: ast.AST, prefix: str) -> None:
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[prefix + node.name] = ast.get_source_segment(text, node) or ""
                visit(node, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found[prefix + node.targets[0].id] = ast.get_source_segment(text, node) or ""

    visit(ast.parse(text), "")
    return found
