"""What deploys it: compose, image, units, alerts, dashboard; checked by what reads them.

Whichever of those is not installed is left out, with its name.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Connection

from pgbeat.cli import COMMANDS
from pgbeat.cli.operations.health import health_command
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections
from pgbeat.database.migrations import migrate
from pgbeat.monitoring.metrics import counters, prometheus
from pgbeat.monitoring.metrics.counters import CounterValue, add
from pgbeat.monitoring.metrics.families import FAMILIES, histogram
from pgbeat.version import __version__
from tests.support.databases import connected, statements
from tests.support.processes import ROOT
from tests.support.rows import Sql, make_job, make_lane, make_schedule, make_webhook

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
ONE_SHOT = {"migrate", "example", "metrics-token"}


def run(*command: str, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )


# -- compose


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """docker-compose.yml, its anchors followed."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found


def test_compose_understands_it() -> None:
    command = ["docker", "compose"]
    probe = shutil.which("docker") and subprocess.run(
        [*command, "version"], capture_output=True, check=False
    )
    if not probe or probe.returncode:
        command = ["docker-compose"]
    result = run(*command, "--profile", "monitoring", "config")
    assert result.returncode == 0, result.stderr
    services = yaml.safe_load(result.stdout)["services"]
    assert {"postgres", "beat-1", "beat-2", "worker", "web", "flower", "grafana"} <= set(services)


def test_every_service_says_whether_it_is_well(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        if name in ONE_SHOT:
            assert service["restart"] == "no", name
            continue
        assert service["restart"] == "unless-stopped", name
        check = service["healthcheck"]
        assert check["test"][0] in ("CMD", "CMD-SHELL") and check["retries"] >= 3, name


def test_who_depends_on_whom_waits_for_the_right_thing(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            once = "service_completed_successfully"
            assert how["condition"] == (once if other in ONE_SHOT else "service_healthy"), name
    for name in ("beat-1", "beat-2", "worker", "web", "flower"):
        assert "migrate" in services[name]["depends_on"], name
    monitoring = {name for name, each in services.items() if "profiles" in each}
    assert monitoring == {"metrics-token", "prometheus", "grafana"}


def test_images_have_versions_and_ports_are_this_machines(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        tag = service["image"].partition(":")[2]
        assert re.fullmatch(r"v?\d+\.\d+[\w.-]*", tag), (name, service["image"])
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name


def test_files_that_are_mounted_are_there(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), source
            else:
                assert source in compose["volumes"], source


def test_the_environment_of_the_trial_is_what_pgbeat_reads() -> None:
    lines = (DEPLOY / "trial.env").read_text().splitlines()
    environ = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    settings = Settings.load({}, environ)
    assert settings.url.password == environ["POSTGRES_PASSWORD"]
    assert settings.url.database == environ["POSTGRES_DB"]
    assert postgres_url(environ["CELERY_BROKER_URL"].removeprefix("pgbeat+")) == settings.url
    assert settings.web_url
    assert settings.web_flower_url


def test_commands_of_the_image_exist(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        command = service.get("command", "")
        if isinstance(command, str) and command.startswith("pgbeat "):
            assert command.split()[1] in COMMANDS, name


# -- the image


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    rows = [line.strip() for line in text.splitlines()]
    return [
        (word, rest.strip())
        for word, _, rest in (row.partition(" ") for row in rows if row and row[0] != "#")
    ]


def test_the_image_is_built_in_stages_and_runs_as_nobody_special() -> None:
    found = instructions()
    assert [rest for word, rest in found if word == "FROM"] == ["${BASE} AS build", "${BASE}"]
    assert re.fullmatch(r"BASE=python:3\.\d+\.\d+-slim-\w+", found[0][1])
    final = last_stage()
    words = [word for word, _ in final]
    users = [rest for word, rest in final if word == "USER"]
    assert users == ["10001:10001"] and words.index("USER") < words.index("ENTRYPOINT")
    assert not any("pip" in rest for word, rest in final if word == "RUN")


def last_stage() -> list[tuple[str, str]]:
    found = instructions()
    return found[max(n for n, (word, _) in enumerate(found) if word == "FROM") :]


def test_labels_of_the_image_are_build_arguments() -> None:
    final = last_stage()
    defaults = dict(rest.split("=", 1) for word, rest in final if word == "ARG")
    (labels,) = [rest for word, rest in final if word == "LABEL"]
    found = re.findall(r'org\.opencontainers\.image\.(\w+)="\$(\w+)"', labels)
    assert [name.upper() for name, _ in found] == [argument for _, argument in found]
    assert [argument for _, argument in found] == list(defaults)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert defaults == {
        "TITLE": project["name"],
        "VERSION": __version__,
        "REVISION": "",
        "SOURCE": "",
        "LICENSES": project["license"],
    }


def test_the_image_checks_the_health_of_its_role() -> None:
    final = last_stage()
    check = dict(final)["HEALTHCHECK"].partition(" CMD ")[2]
    program, *arguments = shlex.split(check.replace("$PGBEAT_ROLE", "worker"))
    environ = [part for word, rest in final if word == "ENV" for part in rest.split()]
    assert "PGBEAT_ROLE=worker" in environ and '"worker"' in dict(final)["CMD"]
    assert program == "pgbeat" and arguments.pop(0) in COMMANDS
    assert health_command.make_context("health", arguments).params["role"] == "worker"


def test_the_bill_of_materials_lists_what_is_installed(tmp_path: Path) -> None:
    (command,) = [rest for word, rest in instructions() if word == "RUN" and "cyclonedx" in rest]
    program, *arguments = shlex.split(command.rpartition("&&")[2])
    file = arguments[arguments.index("--output-file") + 1]
    assert arguments[-1] == "/opt/venv"
    assert ("COPY", f"--from=build {file} /usr/share/pgbeat/sbom.cdx.json") in last_stage()
    names = {"/opt/venv": sys.executable, file: str(tmp_path / "sbom.json")}
    # The tool's own check of what it writes would take most of the time.
    arguments = [*(names.get(each, each) for each in arguments), "--no-validate"]
    result = run(Path(program).name, *arguments)
    assert result.returncode == 0, result.stderr
    bill = json.loads((tmp_path / "sbom.json").read_text())
    listed = {(part["name"].lower(), part["version"]) for part in bill["components"]}
    assert {(name, version(name)) for name in ("pgbeat", "celery", "psycopg")} <= listed


def test_what_the_image_is_built_of_gets_into_its_context() -> None:
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line.removeprefix("!") for line in patterns if line.startswith("!")]
    assert "*" in patterns
    for word, rest in instructions():
        if word == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                path = source.rstrip("/")
                assert path in allowed and (ROOT / path).exists(), source


def test_versions_in_the_image_are_written_down() -> None:
    lines = (DEPLOY / "constraints.txt").read_text().splitlines()
    names = {line.partition("==")[0].lower() for line in lines if line and line[0] != "#"}
    assert all("==" in line for line in lines if line and line[0] != "#")
    assert {"celery", "kombu", "sqlalchemy", "psycopg", "fastapi", "flower", "uvicorn"} <= names


# -- systemd


@pytest.fixture
def units(tmp_path: Path) -> list[Path]:
    """The units, with programs that are there."""
    program = tmp_path / "bin" / "celery"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for unit in UNITS:
        text = unit.read_text()
        assert "/opt/pgbeat/venv/bin/celery" in text
        text = text.replace("/opt/pgbeat/venv/bin", str(program.parent))
        (tmp_path / unit.name).write_text(text)
    return [tmp_path / unit.name for unit in UNITS]


def test_systemd_understands_the_units(units: list[Path]) -> None:
    result = run("systemd-analyze", "verify", "--man=no", *map(str, units))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_units_may_do_little_else(units: list[Path]) -> None:
    for unit in units:
        result = run(
            "systemd-analyze",
            "security",
            "--offline=yes",
            "--threshold=20",
            "--no-pager",
            str(unit),
        )
        assert result.returncode == 0, result.stdout.splitlines()[-1:]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_name_what_there_is(unit: Path) -> None:
    text = unit.read_text()
    example = (DEPLOY / "systemd" / "pgbeat.env.example").read_text()
    for name in re.findall(r"\$\{(\w+)\}", text):
        assert re.search(rf"^{name}=", example, re.M), name
    assert "TimeoutStopSec=" in text and "Restart=always" in text
    if "worker" in unit.name:
        # SIGTERM to a child of the pool would end its task.
        assert "KillMode=mixed" in text
    (command,) = re.findall(r"^ExecStart=((?:.*\\\n)*.*)$", text, re.M)
    assert "--loglevel INFO" in command or "pgbeat web" in command or "flower" in command


def test_a_shell_reads_the_environment_as_units_do(tmp_path: Path) -> None:
    example = (DEPLOY / "systemd" / "pgbeat.env.example").read_text()
    file = tmp_path / "pgbeat.env"
    file.write_text(example.replace("CHANGE-ME", "a$b&c%d"))
    read = run("sh", "-c", f"set -a; . {file}; printenv PGBEAT_URL FLOWER_BASIC_AUTH")
    assert read.stdout.count(":a$b&c%d") == 2, read.stderr


# -- Prometheus


def promtool(*arguments: str) -> None:
    result = run("promtool", *arguments, cwd=DEPLOY / "prometheus")
    assert result.returncode == 0, result.stdout + result.stderr


def test_prometheus_understands_its_configuration_and_rules() -> None:
    promtool("check", "config", "--syntax-only", "prometheus.yml")
    promtool("check", "rules", "rules.yml")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_alerts_fire_when_they_should() -> None:
    promtool("test", "rules", "rules_test.yml")


def test_every_alert_has_a_test() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    tests = (DEPLOY / "prometheus" / "rules_test.yml").read_text()
    for rule in rules["groups"][0]["rules"]:
        name = rule["alert"]
        assert name in tests or (name.startswith("PgbeatQueue") and "PgbeatQueue.*" in tests), name
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]


def test_every_alert_is_in_the_runbook() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    page = (ROOT / "docs/how-to/runbook.md").read_text()
    anchors = {heading.lower().replace(" ", "-").replace(",", "") for heading in _headings(page)}
    for rule in rules["groups"][0]["rules"]:
        name = re.sub("(Fast|Slow)$", "…", rule["alert"])
        section = rule["annotations"]["runbook"].partition("#")[2]
        assert section in anchors, rule["alert"]
        if name not in ("PgbeatNotScraped", "PgbeatNoStandby", "PgbeatTakeOvers", "PgbeatJobsLate"):
            assert f"`{name}`" in page, name


def _headings(page: str) -> list[str]:
    return re.findall("^## (.*)$", page, re.M)


# -- metrics that alerts and panels ask for


@pytest.fixture
def exposed(database: str) -> Iterator[dict[str, set[str]]]:
    """The samples that a scrape gives, each with its labels: a database with one of everything."""
    settings = Settings(url=postgres_url(database))
    migrate.upgrade(settings.url)
    with statements(database) as sql:
        _one_of_everything(sql)
    with connected(database) as connection:
        add(connection, "default", _sums())
        text = _render(connection, settings)
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    yield found


def _render(connection: Connection, settings: Settings) -> str:
    return prometheus.render(connection, settings, has_broker=True)[0].decode()


def _one_of_everything(sql: Sql) -> None:
    sql("SELECT pgbeat.adopt_broker()")
    sql("INSERT INTO kombu_queue (name) VALUES ('q')")
    key = make_schedule(sql, last_success="now")
    make_lane(sql, "l", 1)
    make_job(sql)
    make_job(sql, "failed", schedule_id=key)
    make_webhook(sql)


def _sums() -> list[CounterValue]:
    return [
        CounterValue("ticks", "s", "failed", 1),
        CounterValue("executions", "t", "failed/system", 1),
        CounterValue("duration", "t", "1", 1),
        CounterValue("duration", "t", "sum", 1),
    ]


_NAME = re.compile(r"\bpgbeat_\w+")
_BY = re.compile(r"\b(?:by|on|without)\s*\(([^)]*)\)")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
#: Labels that Prometheus adds, or an instance of ours has.
_OUTER = {"job", "instance", "le", "alertname", "alertstate", "severity"}


def _check(expression: str, exposed: dict[str, set[str]]) -> None:
    names = _NAME.findall(expression)
    assert names or "up{" in expression, expression
    labels = set().union(*(exposed.get(name, set()) for name in names)) if names else set()
    for name in names:
        assert name in exposed, f"{name} is no metric of ours, in {expression}"
    asked = {part.strip() for found in _BY.findall(expression) for part in found.split(",")}
    asked |= set(_MATCHER.findall(expression))
    assert asked - {""} <= labels | _OUTER, expression


def test_the_dashboard_asks_for_what_there_is(exposed: dict[str, set[str]]) -> None:
    board = json.loads((DEPLOY / "grafana" / "dashboards" / "pgbeat.json").read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len(panels) > 15
    for panel in panels:
        assert panel["title"] and panel["targets"]
        for target in panel["targets"]:
            _check(target["expr"], exposed)
            assert target["datasource"]["uid"] == "${datasource}"
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(numbers) == len(set(numbers))


def test_panels_lie_side_by_side() -> None:
    board = json.loads((DEPLOY / "grafana" / "dashboards" / "pgbeat.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


def test_alerts_ask_for_what_there_is(exposed: dict[str, set[str]]) -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    for rule in rules["groups"][0]["rules"]:
        _check(rule["expr"], exposed)


def test_alerts_ask_for_buckets_that_there_are() -> None:
    rules = (DEPLOY / "prometheus" / "rules.yml").read_text()
    lateness = histogram("pgbeat_tick_lateness_seconds", counters.LATENESS, ())
    edges = {sample.labels.get("le") for sample in lateness.samples}
    assert set(re.findall(r"pgbeat_tick_lateness_seconds_bucket\{le=\"(.*?)\"", rules)) <= edges


def test_promql_of_the_dashboard_is_well_formed(tmp_path: Path) -> None:
    board = json.loads((DEPLOY / "grafana" / "dashboards" / "pgbeat.json").read_text())
    times = {"$__rate_interval": "1m", "$__range": "6h", "$job": ".*"}
    expressions = []
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, stands_for in times.items():
                expression = expression.replace(name, stands_for)
            expressions.append(expression)
    rules = [{"record": f"r{n}", "expr": each} for n, each in enumerate(expressions)]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", str(file))


def test_grafana_finds_what_it_is_to_show() -> None:
    folder = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090" and source["isDefault"]
    (provider,) = yaml.safe_load((folder / "dashboards" / "pgbeat.yml").read_text())["providers"]
    compose = (ROOT / "docker-compose.yml").read_text()
    assert f"./deploy/grafana/dashboards:{provider['options']['path']}:ro" in compose


# -- how metrics are written


def test_promtool_finds_nothing_to_remark(exposed: dict[str, set[str]], database: str) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    engine = connections.engine(postgres_url(database), "tests")
    with engine.begin() as connection:
        text = _render(connection, Settings(url=postgres_url(database)))
    result = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


# -- the page on metrics, which lists the families


def test_every_family_is_exposed_with_its_labels(exposed: dict[str, set[str]]) -> None:
    listed = {
        f"{name}_total" if family.kind == "counter" else name: set(family.labels)
        for name, family in FAMILIES.items()
    }
    found: dict[str, set[str]] = {}
    for name, labels in exposed.items():
        found.setdefault(re.sub(r"_(bucket|sum|count)$", "", name), set()).update(labels - {"le"})
    # There is no last tick, and no replica.
    missing: dict[str, set[str]] = {
        "pgbeat_last_tick_timestamp_seconds": set(),
        "pgbeat_read_lag_seconds": set(),
    }
    assert found | missing == listed
