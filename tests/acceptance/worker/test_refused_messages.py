"""Messages that workers don't take for what they say, or can't read."""

import json
from base64 import b64encode
from typing import Any

from tests.support.processes import until
from tests.support.recorded_workers import TrackedWorkers

_NO_ATTEMPTS = {"max_attempts": 1}


def test_what_a_worker_refuses(tracked_workers: TrackedWorkers) -> None:
    """One worker for all of it: it takes longer to start than to refuse."""
    victim = tracked_workers.one("say", "mine", is_dispatched=False)
    unreadable = tracked_workers.one("say", "never", **_NO_ATTEMPTS)
    garbled(tracked_workers, unreadable)
    tracked_workers.app.send_task(
        "tests.say", ["forged"], task_id=victim, headers={"pgbeat_job": True}
    )
    link = tracked_workers.app.signature("tests.say", ["linked"], immutable=True).set(
        task_id=victim, headers={"pgbeat_job": True, "pgbeat_new_job": {"policy": {}}}
    )
    tracked_workers.app.send_task("tests.say", ["plain"], link=link)
    retried = tracked_workers.one("retry")
    worker = tracked_workers.start("-P", "prefork", "-c", "1")

    [seen] = tracked_workers.ended(unreadable)
    assert seen.job.state == "failed"
    assert str(seen.job.error).startswith("the worker refused its message: DecodeError: ")

    [seen] = tracked_workers.ended(retried)  # its retry is of the same job
    assert (seen.job.state, len(seen.runs)) == ("completed", 2)

    until(lambda: tracked_workers.sql("SELECT count(*) FROM kombu_message") == [(0,)], 30)
    found = tracked_workers.see(victim)
    assert (found.job.state, found.runs) == ("pending", [])
    text = worker.output
    assert text.count("runs as a plain task") == 2, text
    assert tracked_workers.states() == {"pending": 1, "failed": 1, "completed": 1}


def garbled(tracked_workers: TrackedWorkers, job_id: str) -> None:
    """Changes the arguments in a job's message, as plain SQL may."""
    [(payload,)] = tracked_workers.sql(
        "SELECT payload FROM kombu_message WHERE job_id = %s", job_id
    )
    message: dict[str, Any] = json.loads(payload)
    body = json.dumps([[{"__type__": "nope", "__value__": 1}], {}, {}])
    message["body"] = b64encode(body.encode()).decode()
    tracked_workers.sql(
        "UPDATE kombu_message SET payload = %s WHERE job_id = %s RETURNING id",
        json.dumps(message),
        job_id,
    )
