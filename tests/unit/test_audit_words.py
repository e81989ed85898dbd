"""Changes of the audit log, in words."""

from typing import Any

import pytest

from pgbeat.access import audit_words


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"paused_at": None}, {"paused_at": "2026-12-24T09:00:00Z"}, ["paused: no → yes"]),
        (
            {"every": 3600, "cron": None},
            {"every": None, "cron": "@daily"},
            ["every: 1 h → none", "cron: none → @daily"],
        ),
        ({"enabled": True}, {"enabled": False}, ["enabled: yes → no"]),
        (
            {"starts_at": None},
            {"starts_at": "2026-12-24T05:30:00-03:30"},
            ["starts_at: none → 2026-12-24 09:00:00 UTC"],
        ),
        (
            None,
            {"task": "a", "args": [], "max_retries": 3, "owner": None},
            ["task: a", "max_retries: 3"],
        ),
        ({"kwargs": {"a": 1}}, None, ['kwargs: {"a": 1}']),
        (None, None, []),
    ],
)
def test_changes_are_said_in_words(before: Any, after: Any, said: list[str]) -> None:
    found = audit_words.changes(before, after)
    assert [f"{column}: {' → '.join(filter(None, values))}" for column, *values in found] == said
