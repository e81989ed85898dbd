"""docs/contributing/tours.md names functions that exist, and each step calls the next."""

import re
import tomllib
from typing import NamedTuple

import pytest

from tests.support.processes import ROOT
from tests.support.sources import definitions

PAGE = (ROOT / "docs/contributing/tours.md").read_text()
PACKAGE = ROOT / "pgbeat"
_NAME = re.compile(r"`((?!tests/)[\w/]+\.(?:py|sql))(?:: ([\w.]+))?`")
_STEP = re.compile(r"^\d+\. `([\w/]+\.py): ([\w.]+)`", re.M)


class Function(NamedTuple):
    """A function or class, by its module below `pgbeat/` and its qualified name."""

    path: str
    name: str

    @property
    def layer(self) -> int:
        """The height of its package: of import-linter's layers, the lowest is the last."""
        return LAYERS[self.path.partition("/")[0].removesuffix(".py")]


def _layers() -> dict[str, int]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = settings["tool"]["importlinter"]["contracts"][0]
    layers = [re.split(r" [|:] ", layer) for layer in contract["layers"]]
    return {name: place for place, names in enumerate(layers) for name in names}


LAYERS = _layers()
MENTIONED = sorted({(path, name) for path, name in _NAME.findall(PAGE)})
LEGS = {
    f"{tour.splitlines()[0]}: {leg.splitlines()[0]}": [
        Function(*found) for found in _STEP.findall(leg)
    ]
    for tour in PAGE.split("\n## ")[1:]
    for leg in tour.split("\n### ")[1:]
}


@pytest.mark.parametrize(("path", "name"), MENTIONED)
def test_what_the_tours_name_exists(path: str, name: str) -> None:
    assert (PACKAGE / path).is_file()
    if name:
        assert name in definitions(path)


def test_there_are_five_tours() -> None:
    assert len({leg.partition(":")[0] for leg in LEGS}) == 5
    assert all(len(steps) >= 2 for steps in LEGS.values())


@pytest.mark.parametrize("leg", LEGS)
def test_each_step_calls_the_next(leg: str) -> None:
    for step, following in zip(LEGS[leg], LEGS[leg][1:], strict=False):
        called = following.name.rpartition(".")[2]
        source = definitions(step.path)[step.name].partition("\n")[2]
        assert re.search(rf"\b{called}\b", source), f"{step} doesn't call {following}"


@pytest.mark.parametrize("leg", LEGS)
def test_no_step_is_in_a_higher_package_than_the_one_before(leg: str) -> None:
    layers = [step.layer for step in LEGS[leg]]
    assert layers == sorted(layers)
