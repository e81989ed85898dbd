"""What beat says: the wording of every message about a decision, in one place."""

import logging
from collections.abc import Sequence

from pgbeat.dispatch import Decision

logger = logging.getLogger("celery.beat.pgbeat")


def decided(decisions: Sequence[Decision]) -> None:
    """A line for each decision: launched and skipped at INFO, failed at WARNING or ERROR."""
    quiet = not logger.isEnabledFor(logging.INFO)
    for decision in decisions:
        tick, row = decision.tick, decision.schedule
        if tick.outcome == "failed":
            if decision.disabled_reason:
                logger.error(
                    "Schedule '%s' max retries exceeded, disabling: %s", row.name, tick.error
                )
            elif decision.next_run is not None:
                logger.warning(
                    "Schedule '%s' failed (retry %d/%d), retrying in %s: %s",
                    row.name,
                    decision.retry_count,
                    row.max_retries,
                    _span(min(row.backoff().total_seconds(), row.retry_cap.total_seconds())),
                    tick.error,
                )
            continue
        if decision.disabled_reason and not decision.is_complete:
            logger.warning("Schedule '%s' disabled: %s", row.name, decision.disabled_reason)
        if quiet:
            continue
        note = f" ({tick.note})" if tick.note else ""
        if tick.outcome == "launched":
            logger.info("Schedule '%s' launched job %s%s", row.name, tick.job_id, note)
        else:
            logger.info("Schedule '%s' skipped: %s%s", row.name, tick.reason, note)
        if decision.is_complete:
            logger.info("Schedule '%s' is %s", row.name, decision.disabled_reason)


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:g}s"
    minutes = seconds / 60
    return f"{minutes:.0f}min" if minutes < 60 else f"{minutes / 60:g}h"
