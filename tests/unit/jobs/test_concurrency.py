"""Concurrency policies: what the built-in ones count, how others are registered, and the gate."""

from collections.abc import Mapping
from typing import Any

import pytest

import pgbeat
from pgbeat.errors import InvalidJob
from pgbeat.jobs.lanes import concurrency
from pgbeat.jobs.lanes.concurrency import ConcurrencyPolicy, Work, concurrency_policy
from pgbeat.jobs.lanes.limiter import Limiter, RateQuota
from tests.support.problems import raises


def work(
    task: str = "crawl", *, tags: tuple[str, ...] = (), resources: Mapping[str, float] | None = None
) -> Work:
    return Work("1", "default", "l", task, (), {}, tags, resources or {}, 0, "user:me")


def test_the_interface_is_public() -> None:
    assert pgbeat.ConcurrencyPolicy is ConcurrencyPolicy
    assert pgbeat.concurrency_policy is concurrency_policy


def test_tasks_counts_each_task() -> None:
    policy = concurrency.make("tasks", {"crawl": 2, "*": 1})
    policy.on_job_started(work("crawl"))
    policy.on_job_started(work("mail"))
    assert policy.can_dispatch(work("crawl")) is True
    assert policy.can_dispatch(work("mail")) == "task 'mail' has 1 of 1 in use"
    assert policy.can_dispatch(work("index")) is True
    policy.on_job_started(work("crawl"))
    assert policy.can_dispatch(work("crawl")) != True  # noqa: E712


def test_a_task_that_is_not_named_is_free() -> None:
    policy = concurrency.make("tasks", {"crawl": 0})
    policy.on_job_started(work("mail"))
    assert policy.can_dispatch(work("mail")) is True
    assert policy.can_dispatch(work("crawl")) != True  # noqa: E712


def test_tags_counts_a_job_for_each_of_its_tags() -> None:
    policy = concurrency.make("tags", {"heavy": 1, "eu": 2})
    policy.on_job_started(work(tags=("heavy", "eu")))
    assert policy.can_dispatch(work(tags=("eu",))) is True
    assert policy.can_dispatch(work(tags=("eu", "heavy"))) != True  # noqa: E712
    assert policy.can_dispatch(work()) is True


def test_resources_are_summed() -> None:
    policy = concurrency.make("resources", {"gpu": 1, "memory": 10})
    for _ in range(9):
        policy.on_job_started(work(resources={"gpu": 0.1}))
    assert policy.can_dispatch(work(resources={"gpu": 0.1})) is True  # whatever floats sum up to
    policy.on_job_started(work(resources={"gpu": 0.1}))
    assert policy.can_dispatch(work(resources={"gpu": 0.1})) != True  # noqa: E712
    assert policy.can_dispatch(work(resources={"memory": 10, "disk": 99})) is True


def test_what_takes_more_than_there_is_says_so() -> None:
    policy = concurrency.make("resources", {"gpu": 2})
    said = policy.can_dispatch(work(resources={"gpu": 3}))
    assert said == "it takes 3 of resource 'gpu', which has 2 in all"


@pytest.mark.parametrize("policy", ["tasks", "tags", "resources"])
@pytest.mark.parametrize("value", [-1, "2", None, True, [1], float("nan"), float("inf")])
def test_limits_are_numbers(policy: str, value: Any) -> None:
    with raises(InvalidJob, ("options", "malformed")):
        concurrency.make(policy, {"x": value})


def test_names_that_are_python_s_are_names_too() -> None:
    policy = concurrency.make("tags", {"self": 1, "class": 1, "limits": 0})
    assert policy.can_dispatch(work(tags=("self", "class"))) is True
    assert policy.can_dispatch(work(tags=("limits",))) != True  # noqa: E712


class PerTenant(ConcurrencyPolicy):
    """A policy with options."""

    def __init__(self, most: int = 1, *, of: str) -> None:
        if most < 1:
            raise LookupError("most must be at least 1")
        self.most, self.of = most, of

    def can_dispatch(self, job: Work) -> bool | str:
        return True


def test_a_policy_is_registered_by_its_class_or_a_name() -> None:
    assert concurrency_policy(PerTenant) is PerTenant
    assert concurrency_policy("tests.tenants")(PerTenant) is PerTenant
    assert concurrency.find("PerTenant") is concurrency.find("tests.tenants") is PerTenant
    assert {"PerTenant", "tests.tenants", "tasks"} <= set(concurrency.registered())


def test_two_policies_cant_have_one_name() -> None:
    class Other(ConcurrencyPolicy):
        def can_dispatch(self, job: Work) -> bool | str:
            return True

    with pytest.raises(ValueError, match=r"TaskLimits and .*Other"):
        concurrency_policy("tasks")(Other)
    assert concurrency.find("tasks") is concurrency.TaskLimits


def test_only_policies_are_registered() -> None:
    with pytest.raises(TypeError, match=r"subclass of pgbeat\.ConcurrencyPolicy"):
        concurrency_policy(dict)  # type: ignore[type-var]


def test_an_unknown_name_gets_the_nearest() -> None:
    with raises(InvalidJob, ("policy", "unknown")):
        concurrency.make("resource", {})


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"mots": 2, "of": "x"}, "unknown_field"),
        ({"zzz": 2}, "unknown_field"),
        ({}, "malformed"),
        ({"most": 0, "of": "x"}, "malformed"),
    ],
)
def test_options_that_a_policy_doesnt_take_are_refused(options: dict[str, Any], code: str) -> None:
    concurrency_policy("tests.tenants")(PerTenant)
    with raises(InvalidJob, ("options", code)):
        concurrency.make("tests.tenants", options)


def test_who_wants_to_know_of_ends_is_known() -> None:
    class Releases(PerTenant):
        def on_job_completed(self, job: Work) -> None:
            raise NotImplementedError

    concurrency_policy("tests.support.versions")(Releases)
    concurrency_policy("tests.tenants")(PerTenant)
    assert "tests.support.versions" in concurrency.listening()
    assert not {"tests.tenants", "tasks"} & set(concurrency.listening())


class Odd(ConcurrencyPolicy):
    """Answers what it is told to."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def can_dispatch(self, job: Work) -> bool | str:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (True, None),
        (1, None),
        (False, "Odd says no"),
        (None, "Odd says no"),
        ("", "Odd says no"),
        ("the license is out", "the license is out"),
        (KeyError("x"), "Odd.can_dispatch raised KeyError: 'x'"),
    ],
)
def test_what_a_policy_answers_is_the_reason(answer: Any, reason: str | None) -> None:
    assert Limiter(None, Odd(answer), None, 0).denial(work()) == reason


def test_the_gate_is_full_at_the_limit() -> None:
    gate = Limiter(3, None, None, 1)
    assert gate.free == 2
    gate.admit(work())
    gate.admit(work())
    assert (gate.free, gate.denial(work())) == (0, "the limit of 3 is reached")
    gate.admit(work())  # one that had its slot before the limit was lowered
    assert gate.free == 0


def test_a_quota_is_used_up_key_by_key() -> None:
    quota = RateQuota(2, {"a": 2, "b": 1}, "2/minute of each task", has_keys=True)
    gate = Limiter(None, None, quota, 0)
    assert gate.denial(work(), ["a"]) == "the rate of 'a', 2/minute of each task, is used up"
    assert gate.denial(work(), ["b"]) is None
    gate.admit(work(), ["b"])
    assert gate.denial(work(), ["b", "c"]) is not None
    assert gate.denial(work(), ["c"]) is None
    assert set(quota.denied) == {"a", "b"}


def test_a_broken_policy_lets_nobody_in() -> None:
    gate = Limiter(None, None, None, 0, "it is not registered")
    assert (gate.free, gate.denial(work())) == (0, "it is not registered")
