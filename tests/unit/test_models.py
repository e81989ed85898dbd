"""Models hold in every state, broken variants fail, and each step names code that is there."""

import re
from functools import cache

import pytest

from tests.models import MODELS
from tests.models.checker import Verdict, check
from tests.support.processes import ROOT
from tests.support.sources import definitions

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
    return definitions(path, with_names=True).get(name, "")
