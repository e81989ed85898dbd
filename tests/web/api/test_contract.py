"""The API against its own OpenAPI document: what schemathesis makes up is asked of a real database,
by an administrator.
"""

import itertools
import traceback
from typing import Any

import pytest

from tests.support.command_line import Sql
from tests.support.rows import make_execution, make_job, make_lane
from tests.support.web import Web, done

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("default"),  # of its own parts
]
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "allow_header_conformance",
)
#: Requests of each operation.
EXAMPLES = 30
#: There is no beat here, and that is what it says.
LEFT_OUT = {"GET /healthz/leader"}
#: Names of things that are there: each other request is about one of them.
NAMES = {"name": "s", "task": "jobs.add"}


def fill(web: Web, sql: Sql) -> dict[str, str]:
    """One thing of each kind; the ids of those that have no name."""
    schedule = {"name": "s", "task": "jobs.add", "args": [1], "cron": "0 0 * * *"}
    web.admin.post("/admin/scheduled-jobs", json=schedule)
    web.admin.put("/templates/s", json={"task": "jobs.add", "args": [1]})
    if not sql("SELECT 1 FROM pgbeat.lanes WHERE name = 's'"):
        make_lane(sql, "s", 1)
    group = done(web.user.post("/groups", json={"jobs": [{"task": "jobs.add", "args": [1]}]}), 201)
    job_id = make_job(sql, state="completed")
    run = make_execution(sql, job_id)
    return {"job_id": job_id, "group_id": str(group["id"]), "execution_id": run}


def ask_about(operation: Any, token: str, known: dict[str, str]) -> None:
    """Asks what schemathesis makes up for an operation; every other time of what there is."""
    turns = itertools.count()

    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        if next(turns) % 2:
            given = case.path_parameters or {}
            case.path_parameters = {k: known.get(k, v) for k, v in given.items()}
        case.call_and_validate(
            headers={"Authorization": f"Bearer {token}"},
            checks=[getattr(schemathesis.checks, name) for name in CHECKS],
        )

    ask()


def test_every_answer_is_as_documented(web: Web, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    """No 5xx, and no status, type or body that the document doesn't have."""
    from pgbeat.web.api.jobs import events

    monkeypatch.setattr(events, "LONGEST", 0.1)
    schema = schemathesis.openapi.from_asgi("/openapi.json", web.app)
    token = web.token("root", "admin")
    wrong: dict[str, str] = {}
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.label in LEFT_OUT:
            continue
        try:
            ask_about(operation, token, NAMES | fill(web, sql))
        except (Exception, BaseExceptionGroup) as error:
            wrong[operation.label] = "".join(traceback.format_exception(error))[-4000:]
    assert not wrong, "\n\n".join(f"===== {label}\n{error}" for label, error in wrong.items())
