"""The documentation says what the code does: settings, tables, public names, words."""

import ast
import importlib
import importlib.util
import json
import re
from dataclasses import fields
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

import pgbeat
from pgbeat import errors
from pgbeat.config import Settings
from pgbeat.database.tables import EVENTS, metadata
from pgbeat.errors import PROBLEM_CODES
from pgbeat.web import problems
from pgbeat.webhooks import events
from tests.support import sources
from tests.support.processes import ROOT

DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"


def loaded(file: Path) -> ModuleType:
    """A module that is in no package."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The hook that fills in the generated parts."""
    return loaded(DOCS / "_site" / "generate.py")


def test_pages_for_programs_have_what_is_said_of_each_name(tmp_path: Path) -> None:
    twins = loaded(DOCS / "_site" / "twins.py")
    for uri in ("reference/python.md", "reference/commands.md"):
        page = SimpleNamespace(file=SimpleNamespace(src_uri=uri))
        twins.on_page_markdown((DOCS / uri).read_text(), page)
    twins.on_env(None, SimpleNamespace(site_dir=tmp_path, site_name="x", site_description="y"))
    text = (tmp_path / "reference" / "python.md").read_text()
    assert "### pgbeat.TaskPolicy\n" in text and "\nMakes a job, which workers execute" in text
    assert "Each command has" in (tmp_path / "reference" / "commands.md").read_text()
    assert ":::" not in text


def test_every_table_is_described(generate: ModuleType) -> None:
    notes: dict[str, Any] = yaml.safe_load((DOCS / "_site" / "tables.yml").read_text())
    schema = {
        table.name: {column.name for column in table.columns} for table in metadata.tables.values()
    }
    assert set(notes) == set(schema)
    for name, note in notes.items():
        assert set(note.get("columns") or {}) <= schema[name], name
    page = generate.database_tables()
    assert all(f"## {name}\n" in page for name in schema)


def test_the_table_of_scale_is_that_of_the_recorded_figures() -> None:
    scale = loaded(ROOT / "benchmarks/charts/scale.py")
    page = (DOCS / "concepts" / "scale.md").read_text()
    figures = json.loads((ROOT / "benchmarks" / "figures.json").read_text())
    assert page == scale.rewritten(page, figures)
    assert page.count("\n| launches of schedules |") == 1


def test_every_value_of_the_chart_is_described_and_has_a_type(generate: ModuleType) -> None:
    described = re.findall(r"^\| `([\w.]+)` \|", generate.chart_values(), re.M)
    schema = json.loads((ROOT / "deploy/kubernetes/values.schema.json").read_text())

    def typed(part: dict[str, Any], prefix: str = "") -> list[str]:
        if "properties" not in part:
            return [prefix]
        inner = part["properties"].items()
        return [leaf for name, each in inner for leaf in typed(each, f"{prefix}.{name}".strip("."))]

    assert len(described) > 50
    assert sorted(described) == sorted(set(typed(schema)) - {"global"})
    worker = schema["properties"]["workers"]["items"]["properties"]
    defaults = schema["properties"]["workerDefaults"]["properties"]
    assert {name: each for name, each in worker.items() if name != "name"} == defaults


def test_every_endpoint_is_listed(generate: ModuleType) -> None:
    page = generate.endpoints()
    assert "### POST /jobs {" in page
    assert "## Models" in page


def test_every_public_name_is_documented() -> None:
    page = (REFERENCE / "python.md").read_text()
    documented = set(re.findall(r"^::: pgbeat\.(\w+)$", page, re.M))
    assert documented == set(pgbeat.__all__) - {"__version__"}


def test_every_kind_of_connection_is_counted() -> None:
    page = (ROOT / "docs/how-to/connections.md").read_text()
    named = re.compile(r'(?<!name=)f?"pgbeat ([a-z]+)(?:"| \{)')
    for file in sorted((ROOT / "pgbeat").rglob("*.py")):
        source = file.read_text()
        if "pgbeat.database" in source or file.parent.name == "database":
            for found in named.finditer(source):
                assert found[1] == "guest" or f"`pgbeat {found[1]}" in page, (file, found[1])


def test_every_setting_is_documented_with_its_default(generate: ModuleType) -> None:
    rows = re.findall(r"^\| `pgbeat_(\w+)` \| (.*?) \| (.*?) \|$", generate.settings(), re.M)
    assert [name for name, _, _ in rows] == [each.name for each in fields(Settings)]
    assert [name for name, _, meaning in rows if not meaning] == []
    defaults = {name: default for name, default, _ in rows}
    assert (defaults["lock_key"], defaults["web_direct"]) == ("1050", "`false`")


def test_every_event_is_described() -> None:
    assert tuple(events.EVENTS) == EVENTS


def test_every_decision_is_listed_once(generate: ModuleType) -> None:
    listed = re.findall(r"^- \[\d+\]\((\S+)\) \S", generate.decisions(), re.M)
    assert sorted(listed) == sorted(page.name for page in (DOCS / "decisions").glob("0*.md"))


def test_every_part_that_a_page_asks_for_is_generated(generate: ModuleType) -> None:
    marks = [
        mark
        for page in DOCS.rglob("*.md")
        for mark in re.findall(r"<!-- generated: (\w+) -->", page.read_text())
    ]
    assert sorted(marks) == sorted(generate.PARTS)


_IMPORT = re.compile(r"^ *(?:from (pgbeat[\w.]*) import (.+)|import (pgbeat[\w.]*))", re.M)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_what_examples_import_is_there(page: Path) -> None:
    for block in re.findall(r"```python.*?\n(.*?)```", page.read_text(), re.S):
        for source, names, module in _IMPORT.findall(block):
            found = importlib.import_module(source or module)
            for name in re.findall(r"\w+", names.partition("#")[0]):
                submodule = f"{found.__name__}.{name}"
                assert hasattr(found, name) or importlib.util.find_spec(submodule), submodule


def examples() -> dict[str, str]:
    """Returns what readers copy: code of the pages, the example's files and those to deploy it."""
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    found = {
        str(page.relative_to(ROOT)): "\n".join(
            re.findall(r"```.*?\n(.*?)```", page.read_text(), re.S)
        )
        for page in pages
    }
    files = [
        ROOT / "docker-compose.yml",
        *(ROOT / "deploy").rglob("*"),
        *(ROOT / "tasks").rglob("*.py"),
    ]
    texts = {str(each.relative_to(ROOT)): each.read_text() for each in files if each.is_file()}
    return found | texts


def test_no_example_needs_another_server_for_results() -> None:
    asking = {
        name for name, text in examples().items() if re.search(r"redis|rpc://|\bdb\+", text, re.I)
    }
    assert asking == {"docs/how-to/from-redis.md"}


def test_the_example_keeps_its_results_in_the_brokers_database() -> None:
    from tasks import app

    assert app.conf.result_backend == app.conf.broker_url
    assert app.conf.broker_url.startswith("pgbeat+postgresql")


def test_messages_of_the_troubleshooting_page_are_ours() -> None:
    page = (DOCS / "how-to/troubleshooting.md").read_text().partition("## By message")[2]
    package = ROOT / "pgbeat"
    source = "\n".join(
        path.read_text() for path in package.rglob("*.*") if path.suffix in (".py", ".sql")
    )
    source = re.sub(r'"\s*\n\s*f?"', "", source).replace("''", "'")
    messages = re.findall(r"`([^`]+)`", " ".join(re.findall(r"^(`.*)\n:", page, re.M)))
    parts = [part.strip() for message in messages for part in message.split("…")]
    assert len(parts) > 20
    assert [part for part in parts if part not in source] == []


@pytest.mark.parametrize(
    ("section", "folder"), [("## Packages", "pgbeat"), ("### Inside `jobs`", "pgbeat/jobs")]
)
def test_every_package_is_on_the_map(section: str, folder: str) -> None:
    page = (DOCS / "contributing/index.md").read_text()
    map_of_folder = re.split(r"\n##", page.partition(f"\n{section}\n")[2])[0]
    rows = re.findall(r"^\| (`.*?) \| ", map_of_folder, re.M)
    packages = {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")}
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == packages


def test_the_tests_that_the_documentation_names_exist() -> None:
    pages = "\n".join(page.read_text() for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)(?:_…)?`", pages))
    assert [name for name in sorted(named) if f"def {name}" not in tests] == []
    paths = re.findall(r"`((?:tests|benchmarks|deploy|pgbeat)/[\w/.-]+)`", pages)
    # The guide on testing names a file of the reader's project.
    missing = {path for path in paths if not (ROOT / path).exists()}
    assert missing == {"tests/worker/Dockerfile"}


_RAISES = {"problem", *(name for name in vars(errors) if not name.startswith("_"))}


def raised_codes() -> set[str]:
    """The codes of errors and their problems, by how the code makes them."""
    found = {"not_ready", *problems._CODES.values(), *problems._PYDANTIC_CODES.values()}
    found |= set(filter(None, problems._OF_DATABASE))
    for path, nodes in sources.nodes().items():
        for node in nodes:
            code: ast.expr | None = None
            match node:
                # `Problem(field, code, …)`, `InvalidJob.of(…)`, `problems.add(…)`
                case ast.Call(func=ast.Name("Problem"), args=[_, code, _]):
                    pass
                case ast.Call(func=ast.Attribute(owner, "of" | "_add"), args=[_, code, _]):
                    code = None if ast.unparse(owner) == "InvalidTransition" else code
                case ast.Call(func=ast.Attribute(ast.Name(name), "add"), args=[_, code, _]):
                    code = code if name == "problems" else None
                # `problem(…, code="timeout")`, `Forbidden(…, code="masked")`, and a class's `code`
                case ast.Call(func=ast.Name(name), keywords=keywords) if name in _RAISES:
                    code = next((each.value for each in keywords if each.arg == "code"), None)
                case ast.Assign([ast.Name("code")], value) if path.endswith("errors.py"):
                    code = value
            if isinstance(code, ast.Constant) and code.value:
                found.add(str(code.value))
    return found


def test_every_error_code_is_documented() -> None:
    page = (REFERENCE / "api.md").read_text()
    tables = page.partition("`code` of the answer")[2].partition("```")[0]
    documented = set(re.findall(r"`([a-z_]+)`", tables)) | set(PROBLEM_CODES)
    assert documented - {"errors"} == raised_codes()
