"""Job policies: what may stand in one."""

from datetime import timedelta
from typing import Any

import pytest

from pgbeat.errors import InvalidJob
from pgbeat.jobs import policies as job_policies
from pgbeat.jobs.policies import JobPolicy, parse


def test_everything_there_is() -> None:
    given = {
        "template": "x", "lane": "gpu", "priority": 5, "max_attempts": 4, "retry_base": "1 min",
        "retry_cap": 90.5, "tags": ["a", "b", "a"], "resources": {"gpu": 1.0, "gb": 0.5},
        "unique": True, "unique_key": "k", "unique_for": 3600, "requires_approval": False,
    }  # fmt: skip
    policy = parse(given)
    assert policy == JobPolicy(
        "x", "gpu", 5, 4, timedelta(minutes=1), timedelta(seconds=90.5), ("a", "b"),
        {"gpu": 1, "gb": 0.5}, True, "k", timedelta(hours=1), False,
    )  # fmt: skip
    assert policy.as_json() == {
        **given, "retry_base": 60, "tags": ["a", "b"], "resources": {"gpu": 1, "gb": 0.5},
    }  # fmt: skip
    assert parse(policy.as_json()) == policy
    assert parse({}) == parse(dict.fromkeys(JobPolicy._fields)) == JobPolicy()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"lan": 1}, "'lan' is not a key of it; did you mean 'lane'?"),
        ({"zzz": 1}, "'zzz' is not a key of it; there are template, lane, priority"),
        ({"lane": ""}, "lane: '' is not a name of 1 to 200 characters"),
        ({"lane": 5}, "lane: 5 is not a name of 1 to 200 characters"),
        ({"priority": 256}, "priority: 256 is out of range; it must be 0 to 255"),
        ({"priority": True}, "priority: True is not a whole number"),
        ({"max_attempts": 0}, "max_attempts: 0 is out of range; it must be 1 to 1000"),
        ({"max_attempts": 2.0}, "max_attempts: 2.0 is not a whole number"),
        ({"retry_base": "soon"}, "retry_base: 'soon': it is no length of time"),
        ({"retry_base": -1}, "retry_base: -1 is out of range; it must be 0 to 36500 days"),
        ({"unique_for": timedelta(days=1_000_000)}, "unique_for: 1000000 days, 0:00:00 is out of"),
        ({"retry_base": 1e300}, "retry_base: 1e+300 is out of range; it must be 0 to 36500 days"),
        ({"retry_cap": True}, "retry_cap: must be a length of time, seconds or"),
        ({"retry_base": 60, "retry_cap": 59}, "retry_cap: must not be below retry_base"),
        ({"tags": "one"}, "tags: must be a list of names, got 'one'"),
        ({"tags": [1]}, "tags: 1 is not a name"),
        ({"resources": ["gpu"]}, "resources: must be an object of amounts such as"),
        ({"resources": {"gpu": 0}}, "resources: must be an object of amounts such as"),
        ({"resources": {"gpu": True}}, "resources: must be an object of amounts such as"),
        ({"unique": 1}, "unique: 1 is neither true nor false"),
    ],
)
def test_a_mistake_says_what_would_be_right(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidJob) as error:
        parse(given)
    assert str(error.value).startswith(f"job_policy: {problem}")


def test_every_mistake_is_listed() -> None:
    policy, mistakes = job_policies.read({"lane": "gpu", "tags": 5, "lan": 1, "unique": "no"})
    assert policy == JobPolicy(lane="gpu")
    assert [(each.field, each.code) for each in mistakes] == [
        ("tags", "malformed"),
        ("lan", "unknown_field"),
        ("unique", "malformed"),
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
