"""Decides which jobs may have a slot of a lane, by its limit, its rate and its policy."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pgbeat.jobs.lanes.concurrency import ConcurrencyPolicy, Work


class RateQuota:
    """Counts what is left of a lane's rate, for each key."""

    def __init__(
        self, limit: int, spent: Mapping[str | None, int], text: str, *, has_keys: bool
    ) -> None:
        self._limit, self._spent, self._text = limit, Counter(spent), text
        self.has_keys = has_keys
        #: Keys for which a job was denied.
        self.denied: set[str | None] = set()

    def left(self, key: str | None) -> int:
        """Returns how many jobs with that key may still start."""
        return max(0, self._limit - self._spent[key])

    def denial(self, keys: Iterable[str | None]) -> str | None:
        """Returns why a job with these keys may not start now; `None` if it may."""
        spent = [key for key in keys if not self.left(key)]
        self.denied.update(spent)
        if not spent:
            return None
        of = "" if spent[0] is None else f" of {spent[0]!r}"
        return f"the rate{of}, {self._text}, is used up"

    def take(self, keys: Iterable[str | None]) -> None:
        """Counts a job that starts."""
        self._spent.update(keys)


class Limiter:
    """Decides which jobs may have a slot. Made anew for each dispatch of the lane."""

    def __init__(
        self,
        limit: int | None,
        policy: ConcurrencyPolicy | None,
        quota: RateQuota | None,
        taken: int,
        problem: str | None = None,
    ) -> None:
        self._limit, self._policy, self.quota = limit, policy, quota
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

    def denial(self, work: Work, keys: Sequence[str | None] = ()) -> str | None:
        """Returns why a job gets no slot now; `None` if it may have one.

        The lane's rate counts the job by `keys`.
        """
        if self.is_broken:
            return self.problem
        if self.free == 0:
            return f"the limit of {self._limit} is reached"
        said = self.quota.denial(keys) if self.quota is not None else None
        if said is not None or self._policy is None:
            return said
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
        if self.quota is not None:
            self.quota.take(keys)
        if self._policy is None or self.is_broken:
            return
        try:
            self._policy.on_job_started(work)
        except Exception as error:
            name = type(self._policy).__name__
            self.problem = f"{name}.on_job_started raised {type(error).__name__}: {error}"
            self.is_broken = True
