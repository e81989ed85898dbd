"""Defines concurrency policies, which say which jobs of a lane may run together."""

import inspect
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, overload

from pgbeat import plugins
from pgbeat.errors import InvalidJob
from pgbeat.suggest import did_you_mean

__all__ = ["ConcurrencyPolicy", "Work", "concurrency_policy"]


class Work(NamedTuple):
    """A job or a direct execution, as a policy sees it."""

    id: str
    namespace: str
    lane: str
    task: str
    #: `None` for a direct execution.
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    tags: Sequence[str]
    #: How much it needs of each resource while it runs.
    resources: Mapping[str, float]
    priority: int
    created_by: str
    #: Name of the schedule that launched it.
    schedule: str | None = None
    template: str | None = None
    group_id: str | None = None
    attempt: int = 1
    #: With which it takes turns in its lane: `tenant=acme`; empty if the lane is not fair.
    fair_key: str = ""
    is_direct: bool = False

    @classmethod
    def of(cls, *columns: Any) -> "Work":
        """Returns the work of a row. What is no amount, as only SQL can write it, counts as 1."""
        work = cls(*columns)
        amounts = work.resources.items() if isinstance(work.resources, Mapping) else ()
        resources = {name: amount if _is_amount(amount) else 1 for name, amount in amounts}
        return work._replace(resources=resources)


class ConcurrencyPolicy(ABC):
    """Says which jobs of a lane may run together. Subclass it and use `@concurrency_policy`.

    An instance is made each time that the lane is dispatched, with the lane's options as keyword
    arguments. `on_job_started` is called for each job that has a slot. Then `can_dispatch` is
    called for the jobs that wait, in the order of the line, and `on_job_started` for each that gets
    a slot. So an instance need not store anything. The lane's own limit applies as well.

    The lane is locked meanwhile: the methods must be quick.
    """

    @abstractmethod
    def can_dispatch(self, job: Work) -> bool | str:
        """Returns `True` if the job may have a slot, otherwise `False` or the reason.

        An exception counts as a reason.
        """

    def on_job_started(self, job: Work) -> None:
        """Counts a job that has a slot, or gets one now."""
        return None

    def on_job_completed(self, job: Work) -> None:
        """Releases what the job held elsewhere. Called when a job that had a slot has ended.

        The instance is new. It is called in the process that records the end, just before the
        commit: at least once for each job, and again if the commit fails. Exceptions are logged.
        """
        return None


class _Amounts(ConcurrencyPolicy):
    """Limits the total amount for each name."""

    noun = ""
    #: Whether the limit for `*` holds for each name without a limit.
    has_others = True

    def __init__(self, /, **limits: float) -> None:
        wrong = [f"{name!r}: {value!r}" for name, value in limits.items() if not _is_amount(value)]
        if wrong:
            raise ValueError(f"limits are numbers from 0 on, not {', '.join(wrong)}")
        if not limits:
            raise ValueError(f"""no limits; give for example {{"a {self.noun}": 1}}""")
        self._limits = limits
        self._used: dict[str, float] = defaultdict(float)

    @abstractmethod
    def amounts(self, job: Work) -> Mapping[str, float]:
        """Returns the amounts that the job needs, by name."""

    def can_dispatch(self, job: Work) -> bool | str:
        for name, amount in self.amounts(job).items():
            others = self._limits.get("*") if self.has_others else None
            limit = self._limits.get(name, others)
            if limit is None:
                continue
            if amount > limit:
                return f"it takes {amount:g} of {self.noun} {name!r}, which has {limit:g} in all"
            if self._used[name] + amount > limit * (1 + 1e-9):  # sums of 0.1
                return f"{self.noun} {name!r} has {self._used[name]:g} of {limit:g} in use"
        return True

    def on_job_started(self, job: Work) -> None:
        for name, amount in self.amounts(job).items():
            self._used[name] += amount


class TaskLimits(_Amounts):
    """Limits the jobs of each task (`tasks`), as in `{"shop.crawl": 1, "*": 4}`."""

    noun = "task"

    def amounts(self, job: Work) -> Mapping[str, float]:
        return {job.task: 1}


class TagLimits(_Amounts):
    """Limits the jobs with each tag (`tags`), as in `{"heavy": 1}`."""

    noun = "tag"

    def amounts(self, job: Work) -> Mapping[str, float]:
        return dict.fromkeys(job.tags, 1)


class ResourceLimits(_Amounts):
    """Limits each resource (`resources`), as in `{"gpu": 2, "memory_gb": 64}`.

    A job needs what its `resources` say.
    """

    noun = "resource"
    has_others = False

    def amounts(self, job: Work) -> Mapping[str, float]:
        return job.resources


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12


_registry: dict[str, type[ConcurrencyPolicy]] = {
    "resources": ResourceLimits,
    "tags": TagLimits,
    "tasks": TaskLimits,
}

P = TypeVar("P", bound=type[ConcurrencyPolicy])


@overload
def concurrency_policy(cls: P, /) -> P: ...
@overload
def concurrency_policy(name: str, /) -> Callable[[P], P]: ...


def concurrency_policy(cls_or_name: Any, /) -> Any:
    """Registers a `ConcurrencyPolicy` under its class name, or under the name given.

    All of the app's workers, its beat and what submits jobs must import the module that has
    `@concurrency_policy` or `@concurrency_policy("name")`.
    """
    return plugins.register(_registry, ConcurrencyPolicy, "concurrency_policy", cls_or_name)


def registered() -> list[str]:
    """Returns the names of all registered policies."""
    return sorted(_registry)


def find(name: str) -> type[ConcurrencyPolicy]:
    """Returns the policy with that name. Raises `InvalidJob`, which lists all policies."""
    try:
        return _registry[name]
    except KeyError:
        message = plugins.unknown(_registry, "concurrency policy", name)
        raise InvalidJob.of("policy", "unknown", message) from None


def make(name: str, options: Mapping[str, Any]) -> ConcurrencyPolicy:
    """Returns an instance of the policy with that name.

    Raises `InvalidJob`, also for options that the policy doesn't take.
    """
    cls = find(name)
    parameters = inspect.signature(cls).parameters.values()
    if not any(one.kind is one.VAR_KEYWORD for one in parameters):
        known = [one.name for one in parameters if one.kind is not one.VAR_POSITIONAL]
        for key in options:
            if key not in known:
                hint = did_you_mean(key, known) or f"there are {', '.join(known) or 'none'}"
                raise InvalidJob.of(
                    "options", "unknown_field", f"policy {name!r} has no option {key!r}; {hint}"
                )
    try:
        return cls(**options)
    except Exception as error:
        raise InvalidJob.of("options", "malformed", f"policy {name!r}: {error}") from error


def listening() -> list[str]:
    """Returns the names of the policies that have an `on_job_completed`."""
    default = ConcurrencyPolicy.on_job_completed
    return [name for name, cls in _registry.items() if cls.on_job_completed is not default]
