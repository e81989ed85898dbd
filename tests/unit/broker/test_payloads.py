"""Messages: what Celery's properties become."""

import json
import pickle
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from pgbeat.broker.messages import JOB_HEADER, NEW_JOB_HEADER, NewJob
from pgbeat.broker.payloads import JOB, message, verify


def published(
    headers: Mapping[str, Any] | None = None, **properties: Any
) -> dict[str, dict[str, Any] | str]:
    """What kombu gives a channel to publish."""
    return {"body": "e30=", "headers": dict(headers or {}), "properties": properties}


@pytest.mark.parametrize(
    ("given", "kept"),
    [(None, 0), (0, 0), (5, 5), ("7", 7), (255, 255), (1000, 255), (-3, 0), ("high", 0), ([], 0)],
)
def test_a_priority_is_a_number_from_0_to_255(given: Any, kept: int) -> None:
    assert message(published(priority=given), queue="q").priority == kept


def test_an_eta_is_for_the_table_or_for_the_worker() -> None:
    eta = "2030-01-01T00:00:00+00:00"
    assert message(published({"eta": eta}), queue="q").available_at == eta
    assert message(published({"eta": eta}), queue="q", delay=False).available_at is None
    assert message(published({"eta": eta[:-6]}), queue="q").available_at == eta  # as to Celery
    for none in (None, "tomorrow"):
        assert message(published({"eta": none}), queue="q").available_at is None
    assert message({**published(), "headers": None}, queue="q").available_at is None


def test_an_expiration_is_milliseconds() -> None:
    assert message(published(expiration="1500"), queue="q").ttl == 1500
    assert message(published(), queue="q").ttl is None


def test_the_exchange_goes_with_a_message_that_has_no_queue() -> None:
    made = message(published(), exchange="x", routing_key="a.b")
    assert (made.queue, made.exchange, made.routing_key) == (None, "x", "a.b")


def test_a_message_knows_the_job_that_it_starts() -> None:
    job = str(uuid.uuid4())
    assert message(published({"id": job, JOB_HEADER: JOB}), queue="q").job_id == job
    assert message(published({"id": job}), queue="q").job_id is None
    for odd in ("mine", None, 7):  # a task id of somebody's own is no job's
        assert message(published({"id": odd, JOB_HEADER: JOB}), queue="q").job_id is None


def test_only_pgbeat_s_own_values_make_a_message_a_job_s() -> None:
    job = str(uuid.uuid4())
    new_job: dict[str, Any] = {"policy": {}}
    found = message(published({"id": job, JOB_HEADER: True, NEW_JOB_HEADER: new_job}), queue="q")
    assert (found.job_id, found.new_job) == (None, None)
    mark = pickle.loads(pickle.dumps(JOB))  # noqa: S301 - as it gets to a child process
    own = {"id": job, JOB_HEADER: mark, NEW_JOB_HEADER: NewJob(new_job)}
    found = message(published(own), queue="q")
    assert (found.job_id, found.new_job) == (job, new_job)
    assert json.loads(found.payload)["headers"][JOB_HEADER] is True


def test_headers_count_if_the_row_says_the_same() -> None:
    job, other = str(uuid.uuid4()), str(uuid.uuid4())
    headers: dict[str, Any] = {"id": job, JOB_HEADER: True, "pgbeat_job_attempt": 2, "tenant": "a"}
    assert verify(headers, job)
    assert headers == {"id": job, JOB_HEADER: JOB, "pgbeat_job_attempt": 2, "tenant": "a"}
    for row in (None, other):
        forged = {**headers, JOB_HEADER: True}
        assert not verify(forged, row)
        assert forged == {"id": job, "tenant": "a"}
    plain = {"id": job, "tenant": "a"}
    assert verify(plain, None)
