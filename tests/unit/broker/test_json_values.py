"""Values that kombu's JSON can't read back."""

from datetime import UTC, datetime
from typing import Any

import pytest

from pgbeat.broker.publishing.json_values import unreadable
from pgbeat.broker.publishing.publisher import check_options
from pgbeat.errors import InvalidSchedule


def marked(kind: Any, value: Any) -> dict[str, Any]:
    return {"__type__": kind, "__value__": value}


@pytest.mark.parametrize(
    "bad", [marked("nope", 1), marked("datetime", "soon"), marked("uuid", 5), marked(["a"], 1)]
)
def test_what_kombu_fails_to_read_is_found_at_any_depth(bad: dict[str, Any]) -> None:
    for value in (bad, [bad], {"a": [1, {"b": (bad,)}]}, [marked("datetime", bad)]):
        assert "can't be read by a worker" in str(unreadable(value))
    with pytest.raises(InvalidSchedule, match="can't be read"):
        check_options({"headers": {"tenant": bad}})


def test_what_kombu_reads_is_accepted() -> None:
    circular: list[Any] = []
    circular.append(circular)
    for value in (
        None,
        [],
        {"__type__": "nope"},
        {**marked("nope", 1), "more": 2},
        [datetime.now(UTC)],
        [marked("datetime", "2026-12-24T09:00:00+00:00")],
        marked("decimal", "1.5"),
        circular,
    ):
        assert unreadable(value) is None
