"""Builds of pgbeat that break a promise of steps: kills must find each, or they prove nothing."""

from collections.abc import Callable
from typing import Any

from pgbeat.jobs.running import steps
from pgbeat.worker.steps import StepRun, _Transaction


def _record_apart() -> None:
    """Records a step in another transaction than its session's, and after that."""

    def keep(self: Any, run: StepRun, key: Any, value: Any, began: float) -> Any:
        self.flush()
        self.commit()
        return run.do(lambda c: steps.record(c, run.chain, key, value, 0.0))

    _Transaction.keep = keep  # type: ignore[method-assign]


BUILDS: dict[str, Callable[[], None]] = {"": lambda: None, "records_apart": _record_apart}
