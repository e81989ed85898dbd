"""Says timetables, states and numbers in words."""

from datetime import datetime, timedelta

from pgbeat.schedules.model import Schedule
from pgbeat.timetables import relative, span


def reason(row: Schedule, now: datetime) -> str:
    """Returns why a schedule is in its state; nothing if the state says it all."""
    if not row.enabled:
        if row.completed is not None:
            return row.completed
        again = "" if row.probe_at is None else f"; tried again {relative(row.probe_at, now)}"
        return f"{row.disabled_reason or 'no reason was given'}{again}"
    if row.paused_at is not None:
        why = "" if row.paused_reason is None else f": {first_line(row.paused_reason)}"
        return f"since {relative(row.paused_at, now)}{why}; missed times are not caught up"
    if row.waiting_for is not None:
        return f"for its previous job, {row.waiting_for}, to end"
    if row.retry_count:
        return f"failed {row.retry_count} of {row.max_retries} times: {first_line(row.last_error)}"
    if row.next_run is not None and (now - row.next_run).total_seconds() > 30:
        return f"due for {span(now - row.next_run)}, but no beat has decided it"
    return ""


def length(seconds: float) -> str:
    """Returns how long something lasted in words, below a tenth of a second in milliseconds."""
    if 0 < seconds < 0.1:
        return f"{max(1, round(1000 * seconds))} ms"
    return span(timedelta(seconds=seconds))


def counted(number: int, noun: str, *, most: int | None = None) -> str:
    """Returns `1 message` or `2,000 messages`, with a plus if counting stopped at `most`."""
    more = "+" if most is not None and number >= most else ""
    return f"{number:,}{more} {noun}{'' if number == 1 else 's'}"


def first_line(text: object) -> str:
    """Returns the first line of a text that is not empty, cut to 240 characters."""
    if text is None:
        return ""
    first = next((line.strip() for line in str(text).splitlines() if line.strip()), "")
    return first if len(first) <= 240 else first[:239] + "…"
