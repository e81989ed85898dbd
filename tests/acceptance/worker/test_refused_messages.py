"""Messages that workers don't take for what they say, or can't read."""

import json
from base64 import b64encode
from typing import Any

from tests.support.processes import until
from tests.support.recorded_workers import Crew

_NO_ATTEMPTS = {"max_attempts": 1}


def test_what_a_worker_refuses(crew: Crew) -> None:
    """One worker for all of it: it takes longer to start than to refuse."""
    victim = crew.one("say", "mine", is_dispatched=False)
    unreadable = crew.one("say", "never", **_NO_ATTEMPTS)
    garbled(crew, unreadable)
    crew.app.send_task("tests.say", ["forged"], task_id=victim, headers={"pgbeat_job": True})
    link = crew.app.signature("tests.say", ["linked"], immutable=True).set(
        task_id=victim, headers={"pgbeat_job": True, "pgbeat_new_job": {"policy": {}}}
    )
    crew.app.send_task("tests.say", ["plain"], link=link)
    retried = crew.one("retry")
    worker = crew.start("-P", "prefork", "-c", "1")

    [seen] = crew.ended(unreadable)
    assert seen.job.state == "failed"
    assert str(seen.job.error).startswith("the worker refused its message: DecodeError: ")

    [seen] = crew.ended(retried)  # its retry is of the same job
    assert (seen.job.state, len(seen.runs)) == ("completed", 2)

    until(lambda: crew.sql("SELECT count(*) FROM kombu_message") == [(0,)], 30)
    found = crew.see(victim)
    assert (found.job.state, found.runs) == ("pending", [])
    text = worker.output
    assert text.count("runs as a plain task") == 2, text
    assert crew.states() == {"pending": 1, "failed": 1, "completed": 1}


def garbled(crew: Crew, job_id: str) -> None:
    """Changes the arguments in a job's message, as plain SQL may."""
    [(payload,)] = crew.sql("SELECT payload FROM kombu_message WHERE job_id = %s", job_id)
    message: dict[str, Any] = json.loads(payload)
    body = json.dumps([[{"__type__": "nope", "__value__": 1}], {}, {}])
    message["body"] = b64encode(body.encode()).decode()
    crew.sql(
        "UPDATE kombu_message SET payload = %s WHERE job_id = %s RETURNING id",
        json.dumps(message), job_id,
    )  # fmt: skip
