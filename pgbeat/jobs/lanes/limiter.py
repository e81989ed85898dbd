"""Decides which jobs may have a slot of a lane, by its limit, its rate and its policy."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pgbeat.jobs.lanes.concurrency import ConcurrencyPolicy, Work


class RateQuota:
    """Counts what is left of a lane's rate, for each key."""

    def __init__(
        self,
        limit: int,
        spent: Mapping[str | None, float],
        text: str,
        *,
        has_keys: bool,
        unit: str | None = None,
    ) -> None:
        self._limit, self._spent, self._text = limit, dict(spent), text
        self.has_keys, self.unit = has_keys, unit
        #: Keys for which a job was denied, and what that one costs. No other with the key passes.
        self.denied: dict[str | None, float] = {}

    def cost(self, work: Work) -> float:
        """Returns how much of the rate a job takes."""
        return 1 if self.unit is None else float(work.resources.get(self.unit, 1))

    def left(self, key: str | None) -> int:
        """Returns how many jobs with that key may still start, if each counts 1."""
        return max(0, int(self._limit - self._spent.get(key, 0)))

    def denial(self, keys: Iterable[str | None], cost: float = 1) -> str | None:
        """Returns why a job with these keys may not start now; `None` if it may.

        One that costs more than the limit may start if nothing else has.
        """
        spent = [key for key in keys if key in self.denied or not self._fits(key, cost)]
        for key in spent:
            self.denied.setdefault(key, cost)
        if not spent:
            return None
        of = "" if spent[0] is None else f" of {spent[0]!r}"
        return f"the rate{of}, {self._text}, is used up"

    def _fits(self, key: str | None, cost: float) -> bool:
        spent = self._spent.get(key, 0)
        return spent + cost <= self._limit * (1 + 1e-9) or not spent  # sums of 0.1

    def take(self, keys: Iterable[str | None], cost: float = 1) -> None:
        """Counts a job that starts."""
        for key in keys:
            self._spent[key] = self._spent.get(key, 0) + cost


class Limiter:
    """Decides which jobs may have a slot. One is made for each dispatch of the lane."""

    def __init__(
        self,
        limit: int | None,
        policy: ConcurrencyPolicy | None,
        quota: RateQuota | None,
        taken: int,
        problem: str | None = None,
        *,
        per_key: int | None = None,
        taken_by_key: Mapping[str, int] | None = None,
    ) -> None:
        self._limit, self._policy, self.quota = limit, policy, quota
        self._per_key, self._taken_by_key = per_key, Counter(taken_by_key or {})
        #: Slots in use.
        self.taken = taken
        #: What is wrong with the policy.
        self.problem = problem
        #: Whether no job is admitted for that.
        self.is_broken = problem is not None

    @property
    def free(self) -> int | None:
        """Returns how many slots are left; `None` for no limit."""
        if self.is_broken:
            return 0
        return None if self._limit is None else max(0, self._limit - self.taken)

    @property
    def asks_each(self) -> bool:
        """Returns whether a job may get a slot before another that waits longer."""
        return self._policy is not None or (self.quota is not None and self.quota.has_keys)

    def key_denial(self, key: str) -> str | None:
        """Returns that a key has all its slots; `None` if it may have another."""
        taken = self._taken_by_key[key]
        if not key or self._per_key is None or taken < self._per_key:
            return None
        return f"{key} has {taken} of {self._per_key} slot{'' if self._per_key == 1 else 's'}"

    def denial(self, work: Work, keys: Sequence[str | None] = ()) -> str | None:
        """Returns why a job gets no slot now; `None` if it may have one.

        The lane's rate counts the job by `keys`.
        """
        if self.is_broken:
            return self.problem
        denial = self.key_denial(work.fair_key)
        if denial is not None:
            return denial
        if self.free == 0:
            return f"the limit of {self._limit} is reached"
        denial = None if self.quota is None else self.quota.denial(keys, self.quota.cost(work))
        if denial is not None or self._policy is None:
            return denial
        name = type(self._policy).__name__
        try:
            answer = self._policy.can_dispatch(work)
        except Exception as error:
            self.problem = f"{name}.can_dispatch raised {type(error).__name__}: {error}"
            return self.problem
        if isinstance(answer, str):
            return answer or f"{name} says no"
        return None if answer else f"{name} says no"

    def admit(self, work: Work, keys: Sequence[str | None] = ()) -> None:
        """Counts a job, which has a slot from now on."""
        self.taken += 1
        self._taken_by_key[work.fair_key] += 1
        if self.quota is not None:
            self.quota.take(keys, self.quota.cost(work))
        if self._policy is None or self.is_broken:
            return
        try:
            self._policy.on_job_started(work)
        except Exception as error:
            name = type(self._policy).__name__
            self.problem = f"{name}.on_job_started raised {type(error).__name__}: {error}"
            self.is_broken = True
