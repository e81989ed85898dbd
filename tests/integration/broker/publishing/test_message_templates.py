"""The quick path makes the very message that Celery makes, or leaves it to Celery."""

import json
from base64 import b64decode
from typing import Any

import pytest
from celery import Celery, Task
from celery.utils.saferepr import saferepr

from pgbeat.broker.publishing.message_templates import TaskMessage, _is_plain
from pgbeat.broker.publishing.publisher import TransactionPublisher
from pgbeat.config import postgres_url
from pgbeat.database import connections
from tests.support.broker_sessions import depths

IDS = [f"00000000-0000-0000-0000-00000000000{n}" for n in range(10)]


class Both:
    """Publishes the same launch through Celery and through a template learnt before."""

    def __init__(self, app: Celery) -> None:
        self.app = app

    def messages(
        self, task: str, args: Any = (), kwargs: Any = None, options: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any], bool]:
        """What Celery makes, what the publisher makes of the second launch, whether quickly."""
        slow, quick = TransactionPublisher(self.app), TransactionPublisher(self.app)
        slow.publish(TaskMessage(IDS[1], task, args, kwargs or {}, options or {}))
        quick.publish(TaskMessage(IDS[0], task, [5], {}, options or {}))
        cut = quick._templates.message(TaskMessage(IDS[1], task, args, kwargs or {}, options or {}))
        quick.publish(TaskMessage(IDS[1], task, args, kwargs or {}, options or {}))
        [expected], [made] = slow._made[IDS[1]], quick._made[IDS[1]]
        assert expected._replace(payload="") == made._replace(payload="")
        return _readable(expected.payload), _readable(made.payload), cut is not None


def _readable(payload: str) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(payload)
    message["body"] = b64decode(message["body"]).decode("latin-1")
    assert message["properties"].pop("delivery_tag")
    return message


@pytest.fixture
def both(app: Celery) -> Both:
    return Both(app)


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2), {}), ((1,), {"y": 2})])
def test_same_message(both: Both, args: Any, kwargs: Any) -> None:
    expected, made, quickly = both.messages("tests.add", args, kwargs)
    assert quickly
    assert made == expected


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "other"},
        {"priority": 7},
        {"headers": {"who": "me"}, "shadow": "named"},
        {"time_limit": 10, "soft_time_limit": 5},
        {"ignore_result": False},
        {"routing_key": "celery", "exchange": ""},
    ],
)
def test_same_message_with_options(both: Both, options: Any) -> None:
    expected, made, quickly = both.messages("tests.add", (1,), {}, options)
    assert quickly
    assert made == expected


def test_same_message_with_headers_that_differ(app: Celery) -> None:
    def launch(number: int) -> TaskMessage:
        headers = {
            "celery_beat_task": True,
            "pgbeat_schedule": f"é {number}",
            "pgbeat_job_attempt": 2,
        }
        return TaskMessage(IDS[number], "tests.add", (1,), {}, {}, headers)

    slow, quick = TransactionPublisher(app), TransactionPublisher(app)
    slow.publish(launch(1))
    quick.publish(launch(2))
    assert quick._templates.message(launch(1)) is not None
    quick.publish(launch(1))
    [expected], [made] = slow._made[IDS[1]], quick._made[IDS[1]]
    assert _readable(made.payload) == _readable(expected.payload)
    assert _readable(made.payload)["headers"]["pgbeat_schedule"] == "é 1"


@pytest.mark.parametrize(
    "options", [{"expires": 60}, {"countdown": 10}, {"compression": "gzip"}, {"link": None}]
)
def test_what_depends_on_time_is_made_by_celery(both: Both, options: Any) -> None:
    if options == {"link": None}:
        options = {"link": both.app.tasks["tests.add"].si(1, 2)}
    assert not both.messages("tests.add", (1,), {}, options)[2]


def test_wrong_arguments_raise_as_in_celery(both: Both) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        both.messages("tests.add", (), {"z": 1})


def test_a_task_of_its_own_kind_is_asked_every_time(app: Celery) -> None:
    calls = []

    class Audited(Task):  # type: ignore[type-arg,unused-ignore]
        def apply_async(self, *args: Any, **kwargs: Any) -> Any:
            calls.append(kwargs["task_id"])
            return super().apply_async(*args, **kwargs)

    @app.task(name="tests.audited", base=Audited, shared=False)
    def audited() -> None:
        """Nothing to do."""

    publisher = TransactionPublisher(app)
    for job_id in IDS:
        publisher.publish(TaskMessage(job_id, "tests.audited", (), {}, {}))
    assert calls == IDS


def test_other_serializers_are_left_to_celery(app: Celery) -> None:
    app.conf.task_serializer = "pickle"
    publisher = TransactionPublisher(app)
    publisher.publish(TaskMessage(IDS[0], "tests.add", (1,), {}, {}))
    assert publisher._templates.message(TaskMessage(IDS[1], "tests.add", (1,))) is None


@pytest.mark.parametrize(
    "value",
    [
        *(0, -5, 10**17, True, None, 1.5, -0.0, 1e300, 5e-324, float("inf"), float("nan")),
        *("", "plain words", "a/b:c.d@e+f-g_h", "2026-01-01"),
    ],
)
def test_plain_values_are_shown_as_celery_shows_them(value: Any) -> None:
    assert _is_plain(value)
    assert repr((value, value)) == saferepr((value, value), 1024)
    assert repr({"k": value}) == saferepr({"k": value}, 1024)


def test_many_queues_in_one_publish(app: Celery, database: str) -> None:
    """A topic exchange with two bindings gives two messages, as it does in Celery."""
    from kombu import Exchange, Queue

    topic = Exchange("news", type="topic")
    app.conf.task_queues = [
        Queue("celery", Exchange("celery"), "celery"),
        Queue("all", topic, "#"),
        Queue("some", topic, "a.*"),
    ]
    publisher = TransactionPublisher(app)
    with connections.engine(postgres_url(database), "tests").begin() as connection:
        publisher.prepare(connection)
        publisher.publish(
            TaskMessage(IDS[0], "tests.add", options={"exchange": "news", "routing_key": "a.b"})
        )
        publisher.flush(connection, [IDS[0]])
        assert depths(connection) == {"all": 1, "some": 1}
