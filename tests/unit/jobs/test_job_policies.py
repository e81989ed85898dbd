"""Job policies: what may stand in one."""

from datetime import timedelta
from typing import Any, get_type_hints

import pytest

from pgbeat.errors import InvalidJob
from pgbeat.jobs.policy import policies as job_policies
from pgbeat.jobs.policy.batches import AFTER, BY, SIZE
from pgbeat.jobs.policy.policies import JobPolicy, parse
from pgbeat.jobs.policy.task_policies import TaskPolicy
from tests.support.problems import raises


def test_everything_there_is() -> None:
    given = {
        "template": "x",
        "lane": "gpu",
        "priority": 5,
        "max_attempts": 4,
        "retry_base": "1 min",
        "retry_cap": 90.5,
        "tags": ["a", "b", "a"],
        "resources": {"gpu": 1.0, "gb": 0.5},
        "unique": True,
        "unique_key": "k",
        "unique_for": 3600,
        "requires_approval": False,
    }
    policy = parse(given)
    assert policy == JobPolicy(
        "x",
        "gpu",
        5,
        4,
        timedelta(minutes=1),
        timedelta(seconds=90.5),
        ("a", "b"),
        {"gpu": 1, "gb": 0.5},
        True,
        "k",
        timedelta(hours=1),
        False,
    )
    assert policy.as_json() == {
        **given,
        "retry_base": 60,
        "tags": ["a", "b"],
        "resources": {"gpu": 1, "gb": 0.5},
    }
    assert parse(policy.as_json()) == policy
    assert parse({}) == parse(dict.fromkeys(JobPolicy._fields)) == JobPolicy()


@pytest.mark.parametrize(
    ("given", "field", "code"),
    [
        ({"lan": 1}, "lan", "unknown_field"),
        ({"zzz": 1}, "zzz", "unknown_field"),
        ({"lane": ""}, "lane", "malformed"),
        ({"lane": 5}, "lane", "malformed"),
        ({"priority": 256}, "priority", "out_of_range"),
        ({"priority": True}, "priority", "malformed"),
        ({"max_attempts": 0}, "max_attempts", "out_of_range"),
        ({"max_attempts": 2.0}, "max_attempts", "malformed"),
        ({"retry_base": "soon"}, "retry_base", "malformed"),
        ({"retry_base": -1}, "retry_base", "out_of_range"),
        ({"unique_for": timedelta(days=1_000_000)}, "unique_for", "out_of_range"),
        ({"retry_base": 1e300}, "retry_base", "out_of_range"),
        ({"retry_cap": True}, "retry_cap", "malformed"),
        ({"retry_base": 60, "retry_cap": 59}, "retry_cap", "out_of_range"),
        ({"tags": "one"}, "tags", "malformed"),
        ({"tags": [1]}, "tags", "malformed"),
        ({"resources": ["gpu"]}, "resources", "malformed"),
        ({"resources": {"gpu": 0}}, "resources", "malformed"),
        ({"resources": {"gpu": True}}, "resources", "malformed"),
        ({"unique": 1}, "unique", "malformed"),
    ],
)
def test_a_mistake_has_its_field_and_code(given: dict[str, Any], field: str, code: str) -> None:
    with raises(InvalidJob, (field, code)):
        parse(given)


def test_every_mistake_is_listed() -> None:
    policy, mistakes = job_policies.read({"lane": "gpu", "tags": 5, "lan": 1, "unique": "no"})
    assert policy == JobPolicy(lane="gpu")
    assert list(mistakes) == [
        ("tags", "malformed", "tags: must be a list of names, got 5"),
        ("lan", "unknown_field", "'lan' is not a key of it; did you mean 'lane'?"),
        ("unique", "malformed", "unique: 'no' is neither true nor false"),
    ]


def test_what_is_open_is_as_the_other_says() -> None:
    own = JobPolicy(lane="gpu", unique=False)
    assert own.over(JobPolicy(lane="cpu", unique=True, priority=3)) == JobPolicy(
        lane="gpu", unique=False, priority=3
    )


def test_keys_of_the_content() -> None:
    """The same for the same task and arguments, in whatever order their names come."""
    unique = JobPolicy(unique=True)
    key = unique.key("t", [1], {"a": 1, "b": 2})
    assert key == unique.key("t", (1,), {"b": 2, "a": 1})
    others = [("u", [1], {"a": 1, "b": 2}), ("t", [2], {"a": 1, "b": 2}), ("t", [1], {"a": 1})]
    assert len({key, *(unique.key(*other) for other in others)}) == 4
    assert JobPolicy().key("t", [], {}) is None
    assert JobPolicy(unique_key="k", unique=True).key("t", [], {}) == "k"
    assert JobPolicy(unique_for=timedelta(1)).key("t", [1], {"a": 1, "b": 2}) == key


def test_type_checkers_know_every_key() -> None:
    options = get_type_hints(job_policies.PolicyOptions)
    assert set(options) == set(JobPolicy._fields) == set(job_policies._READERS)
    assert {*get_type_hints(TaskPolicy), "template"} == {*options, "pin", SIZE, AFTER, BY}
