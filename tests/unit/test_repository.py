"""The files around the code agree with it, and with each other."""

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.processes import ROOT

PAGES = [*ROOT.glob("*.md"), *(ROOT / ".github").glob("*.md")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_lock_has_a_version_of_each_requirement() -> None:
    pinned: dict[str, list[str]] = {}
    for line in (ROOT / ".ci/constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            # Nothing but names, versions and markers: each machine has its own index.
            pin = re.fullmatch(r"([a-z0-9-]+)==([\w.]+)( ; [\w.'<>=! ]+)?", line)
            assert pin is not None, line
            pinned.setdefault(pin[1], []).append(pin[2])
    extras = chain.from_iterable(PROJECT["optional-dependencies"].values())
    requirements = [*PROJECT["dependencies"], *extras]
    for requirement in map(Requirement, requirements):
        if requirement.name != PROJECT["name"]:
            versions = pinned.get(canonicalize_name(requirement.name), [])
            assert versions, f"run `nox -s lock`: it lacks {requirement}"
            for version in versions:
                assert requirement.specifier.contains(version), requirement


def test_the_commands_of_tasks_exist() -> None:
    pages = [*PAGES, *(ROOT / "docs").rglob("*.md"), *(ROOT / ".ci").iterdir()]
    named = {name for page in pages for name in re.findall(r"nox -s (\w+)", page.read_text())}
    assert {"lint", "lock"} <= named
    sessions = re.findall(r"^@nox\.session\ndef (\w+)", (ROOT / "noxfile.py").read_text(), re.M)
    assert named <= set(sessions)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S).replace("../blob/HEAD/", "../")
    for link in re.findall(r"\]\((?!https:)(.+?)\)", text):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.M)
            assert anchor in [re.sub(r"[^\w-]", "", h.lower().replace(" ", "-")) for h in headings]


def test_ci_has_each_supported_python_and_postgres() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    cells = workflow["jobs"]["run"]["strategy"]["matrix"]
    topics = (line.rpartition(":: ")[2] for line in PROJECT["classifiers"] if "Python ::" in line)
    assert cells["python"] == [version for version in topics if "." in version]
    script = (ROOT / ".ci/matrix").read_text()
    for name, versions in cells.items():
        assert f"{name.upper()}=${{{name.upper()}:-{' '.join(versions)}}}" in script


@pytest.mark.parametrize("test", (ROOT / ".ci/lowest").read_text().split())
def test_what_runs_with_the_lowest_versions_exists(test: str) -> None:
    """Of a name that is gone, xdist says nothing, and runs no test at all."""
    path, _, name = test.partition("::")
    source = (ROOT / path).read_text()
    assert not name or f"def {name.partition('[')[0]}(" in source
