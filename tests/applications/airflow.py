"""Airflow with the CeleryExecutor: a DAG of 20 tasks, and a worker that is killed in the middle.

Airflow's scheduler is its own: pgbeat is the broker and keeps the results, and its beat isn't used.
"""

import secrets
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.servers import Redis, free_ports
from tests.applications.common import Result, Site, difference, environment, until, version
from tests.support.databases import sqlalchemy_url

VERSION = "3.3.2"
CONSTRAINTS = "https://raw.githubusercontent.com/apache/airflow/constraints-{}/constraints-{}.txt"
#: Airflow's Celery provider imports what Celery 5.7 no longer has.
PACKAGES = (f"apache-airflow[celery]=={VERSION}", "asyncpg", "celery<5.7")
TASKS = 20
DAG = f"""
import time
from airflow.sdk import dag, task

@dag(schedule="@once", is_paused_upon_creation=False)
def many():
    @task(retries=2, retry_delay=1)
    def work(number):
        time.sleep(3)

    work.expand(number=list(range({TASKS})))

many()
"""
SERVICES = {
    "api-server": ("airflow", "api-server", "--workers", "1"),
    "scheduler": ("airflow", "scheduler"),
    "dag-processor": ("airflow", "dag-processor"),
    "worker": ("airflow", "celery", "worker", "--concurrency", "4"),
}
#: Seconds that a step may take on a slow machine.
LIMIT = 900
#: Airflow runs again what has not been heard of for so many seconds: 300, if it isn't set.
SILENT = 20
STATES = "SELECT state FROM task_instance WHERE map_index >= 0"
#: How Celery ended the last run of each task.
RESULTS = """
    SELECT r.status FROM task_instance t
      JOIN pgbeat.results r ON r.task_id = t.external_executor_id
     WHERE t.map_index >= 0
"""
MESSAGES = """
    SELECT m.id FROM kombu_message m JOIN kombu_queue q ON q.id = m.queue_id
     WHERE q.name = 'default'
"""


def run(folder: Path, build: str) -> list[Result]:
    """Runs the DAG on Redis if there is one, then on pgbeat, or only there, broken by a build."""
    programs = environment(folder, *_constrained(folder), *PACKAGES)
    lines: list[dict[str, str]] = []
    results = []
    for broker in ("redis", "pgbeat") if Redis.installed() and not build else ("pgbeat",):
        with Site(folder / broker, programs, redis=broker == "redis") as site:
            database = site.database("airflow")
            lines.append(_queue(site, database))
            results.append(_run_on(site, database, lines[-1], build))
    print(difference(lines[0], lines[-1]))
    return results


def _constrained(folder: Path) -> tuple[str, ...]:
    """Returns the option with Airflow's constraints; nothing if they can't be had."""
    file = folder / "constraints.txt"
    minor = "{}.{}".format(*sys.version_info)
    try:
        urllib.request.urlretrieve(CONSTRAINTS.format(VERSION, minor), file)  # noqa: S310
    except OSError as error:
        print(f"without Airflow's constraints: {error}")
        return ()
    return ("--constraint", str(file))


def _queue(site: Site, database: str) -> dict[str, str]:
    """Returns the lines of the configuration that depend on the broker.

    Those for Redis are as in Airflow's Compose file.
    """
    redis = site.redis_url
    return {
        "AIRFLOW__CELERY__BROKER_URL": redis or f"pgbeat+{database}",
        "AIRFLOW__CELERY__RESULT_BACKEND": (
            f"db+{sqlalchemy_url(database)}" if redis else f"pgbeat+{database}"
        ),
    }


def _configuration(site: Site, database: str) -> dict[str, str]:
    """Returns the lines that are the same with each broker."""
    port, log_port, health_port = free_ports(3)
    url = f"http://127.0.0.1:{port}"
    return {
        "AIRFLOW_HOME": str(site.folder),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__SECRET_KEY": secrets.token_hex(),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": sqlalchemy_url(database),
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(log_port),
        "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": str(health_port),
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(SILENT),
    }


def _answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=10):  # noqa: S310
        return True
    return False


def _is_soon(condition: Callable[[], bool]) -> bool:
    """Returns whether the condition holds within 30 seconds."""
    try:
        return until(condition, 30)
    except AssertionError:
        return False


def _run_on(site: Site, database: str, queue: dict[str, str], build: str) -> Result:
    """Runs the DAG, with its worker killed once some tasks are done and others run."""
    is_ours = queue["AIRFLOW__CELERY__BROKER_URL"].startswith("pgbeat")
    site.env |= _configuration(site, database) | queue
    dags = site.folder / "dags"
    dags.mkdir(exist_ok=True)
    site.run("airflow", "db", "migrate")
    if is_ours:
        site.migrate(database, build)
    for name, command in SERVICES.items():
        site.start(name, *command)
    until(lambda: _answers(f"{site.env['AIRFLOW__API__BASE_URL']}/api/v2/version"), LIMIT)
    (dags / "many.py").write_text(DAG)

    def states() -> list[str | None]:
        return [state for (state,) in site.sql(database, STATES)]

    def is_amid() -> bool:
        return states().count("success") >= 4 and states().count("running") >= 3

    until(is_amid, LIMIT, "some tasks have succeeded, and some run")
    lost = states().count("running")
    site.kill("worker")
    killed = time.monotonic()
    claimed = is_ours and len(site.sql(database, f"{MESSAGES} AND m.claimed_by IS NOT NULL"))
    site.start("worker", *SERVICES["worker"])
    until(lambda: states().count("success") == TASKS, LIMIT, "all tasks have succeeded")
    seconds = round(time.monotonic() - killed)
    checks = {f"{TASKS} of {TASKS} tasks succeeded": True}
    if is_ours:
        checks["messages of the killed worker were kept"] = bool(claimed)
        checks[f"{TASKS} results are SUCCESS"] = _is_soon(
            lambda: site.sql(database, RESULTS) == [("SUCCESS",)] * TASKS
        )
        checks["no message is left"] = _is_soon(lambda: not site.sql(database, MESSAGES))
    name = "pgbeat" if is_ours else "Redis"
    versions = {each: version(site.programs, each) for each in ("celery", "sqlalchemy")}
    figures = {"killed amid tasks": lost, "seconds from kill to end": seconds, **versions}
    return Result(f"Airflow {VERSION} on {name}", checks, site.services(), figures)
