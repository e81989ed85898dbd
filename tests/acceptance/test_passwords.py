"""No output shows a password: settings, statistics, logs, pages, metrics, commands and errors."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from pgbeat.config import postgres_url
from tests.support.command_line import Sql, run
from tests.support.processes import Process, Processes, free_port, until
from tests.support.rows import make_job, make_schedule
from tests.support.web import make_token
from tests.web.test_serving import served

PASSWORD, KEY = "open-sesame-7319", "a-shared-key-of-32-bytes-or-more-7319"
HOOK = "whsec_" + "c2VzYW1lNzMxOXNlc2FtZTczMTlzZXNhbWU3MzE5"
SECRETS = (PASSWORD, KEY, HOOK[6:])
WORKER = "passwords@tests"
APP = f"""
import os
from celery import Celery
url = os.environ["SECRET_DSN"]
app = Celery("passwords", broker=f"pgbeat+{{url}}", backend=f"pgbeat+{{url}}")
app.conf.update(
    pgbeat_url=url, pgbeat_web_jwt_key={KEY!r}, pgbeat_web_jwt_algorithms=["HS256"],
    broker_transport_options={{"direct_url": url, "connect_args": {{"password": {PASSWORD!r}}}}},
    broker_read_url=f"pgbeat+{{url}}", broker_connection_retry_on_startup=True,
)

@app.task(name="passwords.fail")
def fail():
    raise ValueError("no")
"""
#: Commands that need no argument and end by themselves, but for those that ask or write.
READING = (
    *("audit", "dead list", "doctor", "errors", "export", "forecast", "groups list", "jobs list"),
    *("jobs stats", "lanes list", "list", "load", "metrics", "calendars list", "tasks"),
    *("templates list", "tokens list", "webhooks list"),
)
PAGES = (
    *("overview", "schedules", "jobs", "errors", "tasks", "groups", "templates", "lanes", "queues"),
    *("workers", "beats", "webhooks", "webhooks/ops", "audit", "reference"),
)


@pytest.fixture
def secret_dsn(database: str, server: str) -> Iterator[str]:
    """DSN of the test's database, as a role with a password."""
    role = f"secretive_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
        url = postgres_url(database).set(drivername="postgresql", username=role, password=PASSWORD)
        yield url.render_as_string(hide_password=False)
        with psycopg.connect(database, autocommit=True) as own:
            own.execute(f"REASSIGN OWNED BY {role} TO CURRENT_USER")
            own.execute(f"DROP OWNED BY {role}")
        admin.execute(f"DROP ROLE {role}")


@pytest.fixture
def started(
    processes: Processes, secret_dsn: str, tmp_path: Path
) -> Iterator[tuple[Processes, str, str]]:
    """Starts a worker, a beat, a web process and Flower at debug; yields the addresses of two."""
    (tmp_path / "passwords_app.py").write_text(APP)
    processes.env |= {
        "SECRET_DSN": secret_dsn,
        "PYTHONPATH": str(tmp_path),
        "FLOWER_UNAUTHENTICATED_API": "1",
    }
    port = free_port()
    worker = _celery(processes, "worker", "-c", "1", "-l", "DEBUG", "-n", WORKER)
    beat = _celery(processes, "beat", "-S", "pgbeat.Scheduler", "-l", "DEBUG")
    web = _celery(processes, "pgbeat", "web", "--port", "0")
    _celery(processes, "flower", f"--port={port}", "--address=127.0.0.1", "--logging=debug")
    for process, text in ((worker, "ready"), (beat, "beat: Starting"), (web, "Ctrl-C ends it.")):
        process.says(text, 90)
    yield processes, served(web).rstrip("/"), f"http://127.0.0.1:{port}"
    processes.stop_all()  # before their role is dropped


def _celery(processes: Processes, *arguments: str) -> Process:
    return processes.celery(*arguments, app="passwords_app")


def _ended(processes: Processes, *arguments: str) -> str:
    process = _celery(processes, *arguments)
    process.wait(120)
    return process.output


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_output_shows_a_password(
    started: tuple[Processes, str, str], secret_dsn: str, sql: Sql
) -> None:
    processes, web, flower = started
    seen: dict[str, str] = {}
    root = {"Authorization": f"Bearer {make_token(processes.database, 'root', 'admin')}"}
    make_schedule(sql, task="passwords.fail", every="1 second")
    _fill(sql, web, root, seen)

    for command in ("report", "inspect conf", "inspect stats", "inspect report"):
        seen[command] = _ended(processes, *command.split())
        assert "pgbeat" in seen[command]
    _read_flower(flower, seen)
    _read_web(web, root, seen)
    _run_commands(secret_dsn, seen)
    for process in processes.started:
        seen[process.command] = process.output
    shown = {where: text for where, text in seen.items() if any(each in text for each in SECRETS)}
    assert not shown, {where: _around(text) for where, text in shown.items()}


def _around(text: str) -> list[str]:
    return [line[:300] for line in text.splitlines() if any(each in line for each in SECRETS)]


def _fill(sql: Sql, web: str, root: dict[str, str], seen: dict[str, str]) -> None:
    """Makes a webhook, and has the database refuse another."""
    body = {"name": "ops", "url": "https://example.com/h", "events": ["all"], "secret": HOOK}
    httpx.post(f"{web}/webhooks", json=body, headers=root, timeout=30).raise_for_status()
    sql("ALTER TABLE pgbeat.webhooks RENAME COLUMN secret TO moved")
    answer = httpx.post(f"{web}/webhooks", json=body | {"name": "b"}, headers=root, timeout=30)
    sql("ALTER TABLE pgbeat.webhooks RENAME COLUMN moved TO secret")
    assert answer.status_code == 503
    seen["refused"] = answer.text
    make_job(sql, "failed", task="passwords.fail", error="ValueError: no")


def _read_flower(flower: str, seen: dict[str, str]) -> None:
    def is_up() -> bool:
        try:
            found = httpx.get(f"{flower}/api/workers?refresh=1", timeout=30)
        except httpx.TransportError:
            return False
        seen["flower's api"] = found.text
        return found.status_code == 200 and "pgbeat_url" in found.text

    until(is_up, 90, "Flower shows the settings")
    for path in ("/", "/broker", f"/worker/{WORKER}", "/tasks", "/metrics"):
        seen[f"flower {path}"] = httpx.get(flower + path, timeout=30).text


def _read_web(web: str, root: dict[str, str], seen: dict[str, str]) -> None:
    paths = httpx.get(f"{web}/openapi.json", headers=root, timeout=30).json()["paths"]
    found = [path for path, of in paths.items() if "get" in of and "{" not in path]
    found += [f"/console/{page}" for page in PAGES]
    assert {"/metrics", "/webhooks", "/readyz"} <= set(found)
    for path in found:
        if "event" in path or "stream" in path:
            continue
        seen[f"web {path}"] = httpx.get(web + path, headers=root, timeout=30).text
    forged = {"Authorization": "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.AAAA"}
    seen["forged"] = httpx.get(f"{web}/jobs", headers=forged, timeout=30).text


def _run_commands(secret_dsn: str, seen: dict[str, str]) -> None:
    for words in READING:
        result = run(secret_dsn, *words.split())
        assert result.exit_code in (0, 1, 3), result.output
        seen[f"pgbeat {words}"] = result.output
    away = postgres_url(secret_dsn).set(drivername="postgresql", host="127.0.0.1", port=1, query={})
    strange = postgres_url(secret_dsn).set(drivername="postgresql").update_query_dict({"x": "y"})
    for url in (away, strange):
        for words in ("doctor", "list", "migrate --check"):
            dsn = url.render_as_string(hide_password=False)
            seen[f"{words} at {url!r}"] = run(dsn, *words.split()).output
