"""Makes jobs through the API, and records what workers do with them."""

from typing import Any
from uuid import uuid4

from pgbeat.access import actors
from pgbeat.jobs.flow import lifecycle
from pgbeat.jobs.running import executions
from pgbeat.jobs.running.executions import ExecutionRecord
from tests.support.web import Web, done

#: The id of no job.
NOBODY = "00000000-0000-4000-8000-000000000000"


def make(client: Any, **order: Any) -> Any:
    """A job of `jobs.add`, unless told otherwise."""
    body = {"args": [1], **({} if "template" in order else {"task": "jobs.add"}), **order}
    return done(client.post("/jobs", json=body), 201)


def tell(web: Web, job_id: str, *, is_new: bool = True, run: str | None = None, **said: Any) -> str:
    """Has a worker tell of a job's execution; the execution's id."""
    run_id = run or str(uuid4())
    said.setdefault("worker", "w@host")
    with web.app.state.pgbeat.unit(actors.user()) as unit:
        ended = executions.record(
            unit.connection, [ExecutionRecord(run_id, job_id, is_new, **said)]
        )
        lifecycle.follow(unit.connection, unit.publisher, ended)
    return run_id


def audited(admin: Any, kind: str = "job") -> list[tuple[str, str, str]]:
    """Verb, actor and subject of the changes, the oldest first."""
    found = done(admin.get("/audit", params={"kind": kind, "limit": 200}))["changes"]
    return [(each["verb"], each["actor"], each["subject"]) for each in reversed(found)]
