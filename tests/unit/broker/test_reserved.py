"""What publish options must not hold: what would make a message another job's."""

from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context

from pgbeat.broker.publishing import reserved
from pgbeat.broker.publishing.publisher import check_options
from pgbeat.errors import Forbidden, InvalidSchedule

OTHER = "7f0c0000-0000-4000-8000-000000000001"


def signature(**options: Any) -> dict[str, Any]:
    return {"task": "jobs.add", "args": [1], "kwargs": {}, "options": options}


def test_reserved_headers_are_those_of_celery() -> None:
    app = Celery("plain", set_as_current=False, broker="memory://")
    found = reserved.headers()
    assert app.amqp.as_task_v2("id", "task").headers.keys() <= found
    assert {name for name in vars(Context) if not name.startswith("_")} <= found
    assert {"task", "id", "group", "stamps", "chord", "is_eager", "CC", "compression"} <= found
    assert reserved.is_reserved_header("PGBEAT_job")
    assert reserved.is_reserved_header("__class__")
    for own in ("traceparent", "x-request-id", "sentry-trace", "tenant", "Task-Owner"):
        assert not reserved.is_reserved_header(own), own
    app.close()


BAD: list[dict[str, Any]] = [
    *({"headers": {name: OTHER}} for name in (
        "id", "task", "root_id", "parent_id", "group", "retries", "timelimit", "stamps",
        "stamped_headers", "reply_to", "correlation_id", "called_directly", "is_eager", "hostname",
        "pgbeat_job", "pgbeat_own", "pgbeat_attempt", "BCC", "x-death", "_protected",
    )),
    {"link": signature(task_id=OTHER, headers={"pgbeat_job": True})},
    {"link": signature(headers={"id": OTHER})},
    {"link_error": [signature(), signature(task_id=OTHER)]},
    *({"link": signature(**{name: OTHER})} for name in (
        "task_id", "reply_to", "root_id", "parent_id", "group_id", "chord", "chain", "shadow",
        "stamped_headers", "correlation_id", "delivery_tag", "producer", "connection",
    )),
    {"link": signature(link=signature(link_error=signature(task_id=OTHER)))},
    {"link": {**signature(), "kwargs": {"later": signature(task_id=OTHER)}}},
    {"reply_to": "celery"},
    {"root_id": OTHER},
    {"parent_id": OTHER},
    {"group_id": OTHER},
    {"task_id": OTHER},
    *({key: name} for key in ("queue", "exchange", "routing_key") for name in (
        "celery@host.celery.pidbox", "celery.pidbox", "reply.celery.pidbox", "celeryev",
        "celeryev.1234", "amq.gen-1", "celery_delayed_27", "celeryresults",
    )),
    {"link": signature(queue="celery@host.celery.pidbox")},
]  # fmt: skip


@pytest.mark.parametrize("options", BAD, ids=repr)
def test_options_that_reach_another_message_are_invalid(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchedule):
        check_options(options)


def test_the_apps_own_options_are_valid() -> None:
    check_options({
        "headers": {"traceparent": "00-1-2-01", "tenant": "a"}, "queue": "mails", "expires": 60,
        "link": signature(queue="mails", countdown=5, headers={"tenant": "a"}),
    })  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"retry_policy": {"max_retries": None, "interval_start": 1e9}},
        {"immediate": True},
        {"shadow": "jobs.harmless"},
        {"queue": OTHER},
        {"link": signature(retry=True)},
        {"link": {**signature(), "subtask_type": "chain"}},
    ],
    ids=repr,
)
def test_what_only_administrators_may_give(options: dict[str, Any]) -> None:
    check_options({key: value for key, value in options.items() if key != "link"})
    with pytest.raises(Forbidden):
        reserved.check_for_user(options)
