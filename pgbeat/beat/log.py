"""Logs beat's decisions: the wording in one place, the fields beside it."""

import logging
import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pgbeat.beat.evaluation import Decision

logger = logging.getLogger("celery.beat.pgbeat")

#: Seconds for which repeated skips are counted before one line sums them up.
_COUNTED = 60.0
#: Skips that get a line of their own in that time, and schedules that the summary names.
_LINES, _NAMED = 20, 3
#: Launches of one batch that get a line each. More are summed up, unless the level is DEBUG.
_LAUNCHES = 100
#: Numbers and ids in a reason: with other ones it is the same reason.
_VARYING = re.compile(r"[0-9a-f-]*[0-9][0-9a-f.,-]*")


class DecisionLog:
    """Logs the decisions of one beat. Not for several threads.

    A skip gets a line when its reason is new for its schedule; repeated ones are summed up, so that
    a thousand of them don't hide a failure.
    """

    def __init__(self) -> None:
        #: By schedule, the reason that was logged last.
        self._logged: dict[int, str] = {}
        self._again: Counter[str] = Counter()
        self._began, self._lines = time.monotonic(), 0

    def decided(self, decisions: Sequence[Decision]) -> None:
        """Logs a line for each decision, but for repeated skips and large batches of launches.

        Launched and skipped ones are logged at INFO, failed ones at WARNING or ERROR.
        """
        is_quiet = not logger.isEnabledFor(logging.INFO)
        summed_up = [] if is_quiet else _summed_up(decisions)
        for decision in decisions:
            tick, row = decision.tick, decision.schedule
            if tick.outcome != "skipped":
                self._logged.pop(row.id, None)
            if tick.outcome == "failed":
                _failed(decision)
                continue
            if decision.disabled_reason and not decision.is_complete:
                reason = decision.disabled_reason
                logger.warning(
                    "Schedule '%s' disabled: %s", row.name, reason, extra=_fields(decision)
                )
            if is_quiet:
                continue
            if tick.outcome == "launched":
                if not summed_up or not _is_ordinary(decision):
                    _launched(decision)
            elif self._is_new(decision):
                reason = f"{tick.reason}{_note(decision)}"
                logger.info("Schedule '%s' skipped: %s", row.name, reason, extra=_fields(decision))
            if decision.is_complete:
                why = decision.disabled_reason
                logger.info(
                    "Schedule '%s' is completed: %s", row.name, why, extra=_fields(decision)
                )
        if summed_up:
            logger.info(
                "Launched %d schedules: %s",
                len(summed_up),
                _some([f"'{name}'" for name in summed_up[:_NAMED]], len(summed_up)),
                extra={"outcome": "launched", "launches": len(summed_up)},
            )
        self.sum_up()

    def _is_new(self, decision: Decision) -> bool:
        """Returns whether the skip gets its own line; else it is counted."""
        row, reason = decision.schedule, _VARYING.sub("#", (decision.tick.reason or "")[:200])
        if self._logged.get(row.id) != reason and self._lines < _LINES:
            self._logged[row.id] = reason
            self._lines += 1
            return True
        self._again[row.name] += 1
        return False

    def sum_up(self) -> None:
        """Logs the skips that were counted, once a minute."""
        seconds = time.monotonic() - self._began
        if seconds < _COUNTED:
            return
        if self._again:
            total, named = self._again.total(), self._again.most_common(_NAMED)
            often = [f"'{name}' {_times(count)}" for name, count in named]
            logger.info(
                "Skipped %s more in %d s: %s",
                _times(total),
                seconds,
                _some(often, len(self._again)),
                extra={"outcome": "skipped", "skips": total},
            )
        self._again.clear()
        self._began, self._lines = time.monotonic(), 0


def _summed_up(decisions: Sequence[Decision]) -> list[str]:
    """Returns the names of the schedules whose launches one line sums up."""
    if len(decisions) <= _LAUNCHES or logger.isEnabledFor(logging.DEBUG):
        return []
    names = [decision.schedule.name for decision in decisions if _is_ordinary(decision)]
    return names if len(names) > _LAUNCHES else []


def _is_ordinary(decision: Decision) -> bool:
    """Returns whether a launch has nothing to tell but that it was one."""
    tick = decision.tick
    return tick.outcome == "launched" and not (tick.note or tick.more_job_ids)


def _launched(decision: Decision) -> None:
    tick, row = decision.tick, decision.schedule
    more = f" and {len(tick.more_job_ids)} more" if tick.more_job_ids else ""
    logger.info(
        "Schedule '%s' launched job %s%s%s",
        row.name,
        tick.job_id,
        more,
        _note(decision),
        extra=_fields(decision),
    )


def _failed(decision: Decision) -> None:
    tick, row, fields = decision.tick, decision.schedule, _fields(decision)
    if decision.disabled_reason:
        logger.error(
            "Schedule '%s' max retries exceeded, disabling: %s", row.name, tick.error, extra=fields
        )
    elif decision.next_run is not None:
        wait = _span(min(row.backoff().total_seconds(), row.retry_cap.total_seconds()))
        logger.warning(
            "Schedule '%s' failed (retry %d/%d), retrying in %s: %s",
            row.name,
            decision.retry_count,
            row.max_retries,
            wait,
            tick.error,
            extra=fields,
        )


def _fields(decision: Decision) -> dict[str, Any]:
    """Returns the fields of a line, for programs."""
    tick, row = decision.tick, decision.schedule
    fields = {
        "namespace": row.namespace,
        "schedule": row.name,
        "outcome": tick.outcome,
        "trigger": tick.trigger,
        "due_at": tick.due_at.isoformat(),
        "task": row.task,
        "job_id": tick.job_id,
        "reason": tick.reason,
        "error": tick.error,
        "job_ids": tick.job_ids if tick.more_job_ids else None,
        "missed": tick.missed or None,
        "disabled": decision.disabled_reason,
    }
    if tick.outcome == "failed":
        fields |= {"retry_count": decision.retry_count, "max_retries": row.max_retries}
    return {name: value for name, value in fields.items() if value is not None}


def _note(decision: Decision) -> str:
    return f" ({decision.tick.note})" if decision.tick.note else ""


def _some(named: Sequence[str], count: int) -> str:
    """Returns a list of the named ones and the number of the others."""
    others = count - len(named)
    more = [f"{others} other{'s' if others > 1 else ''}"] if others else []
    return ", ".join([*named, *more])


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:g}s"
    minutes = seconds / 60
    return f"{minutes:.0f}min" if minutes < 60 else f"{minutes / 60:g}h"
