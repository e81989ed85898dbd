"""Steps without a database: their keys, their values, and what ends an attempt that waits."""

import pickle
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from kombu.exceptions import ContentDisallowed, EncodeError

from pgbeat.jobs.running.steps import StepKey
from pgbeat.jobs.running.task_exceptions import Suspended
from pgbeat.results import values


def test_keys_are_numbered_from_the_second_on() -> None:
    assert [str(StepKey("step", "pay", number)) for number in (1, 2)] == ["pay", "pay#2"]


@pytest.mark.parametrize(
    ("key", "says"), [("paid/12", "waits for paid/12"), (None, "sleeps for 2 h")]
)
def test_what_ends_an_attempt_can_be_stored(key: str | None, says: str) -> None:
    """By Celery, for whoever asks for the task's state."""
    suspended = Suspended(7200.0, {"step": 1, "key": key})
    stored = pickle.loads(pickle.dumps(suspended))  # noqa: S301
    assert (str(stored), stored.delay, stored.waits_for) == (
        says,
        suspended.delay,
        suspended.waits_for,
    )


@pytest.mark.parametrize("value", [None, 0, "ä", [1, {"a": None}], {"amount": 12.5}])
def test_a_value_is_read_as_its_serializer_wrote_it(value: Any) -> None:
    assert values.decode(values.encode(value, "json"), ["json"]) == value
    assert values.from_json(values.as_json(value)) == value


def test_a_serializer_that_the_app_does_not_accept_is_not_read() -> None:
    written = values.encode({1, 2}, "pickle")
    with pytest.raises(ContentDisallowed):
        values.decode(written, ["json"])
    assert values.decode(written, ["json", "pickle"]) == {1, 2}


def test_what_no_serializer_writes() -> None:
    with pytest.raises(EncodeError):
        values.encode(object(), "json")
    for value in (object(), "\0", float("inf")):
        with pytest.raises((TypeError, ValueError)):
            values.as_json(value)


def test_events_may_have_what_celerys_json_has() -> None:
    value = {"amount": Decimal("1.50"), "at": datetime(2026, 11, 28, tzinfo=UTC)}
    assert values.from_json(values.as_json(value)) == value
