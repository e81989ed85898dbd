"""The exception with which a task snoozes its job."""

import pickle
from datetime import timedelta
from typing import Any

import pytest
from celery.exceptions import Retry

from pgbeat import Snooze


@pytest.mark.parametrize("delay", ["10 minutes", 600, 600.0, timedelta(minutes=10)])
def test_a_delay_is_text_seconds_or_a_length(delay: Any) -> None:
    snooze = Snooze(delay)
    assert snooze.delay == timedelta(minutes=10)
    assert str(snooze) == "snoozed for 10 min"


@pytest.mark.parametrize(
    "delay", ["soon", "", -1, timedelta(-1), float("inf"), float("nan"), "1000 years"]
)
def test_other_delays_are_refused(delay: Any) -> None:
    with pytest.raises(ValueError):
        Snooze(delay)


@pytest.mark.parametrize("delay", [None, True, [1]])
def test_other_types_are_refused(delay: Any) -> None:
    with pytest.raises(TypeError):
        Snooze(delay)


def test_it_is_a_retry_that_pools_can_send_on() -> None:
    found = pickle.loads(pickle.dumps(Snooze(5)))  # noqa: S301
    assert isinstance(found, Retry) and found.delay == timedelta(seconds=5)
