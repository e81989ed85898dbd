"""The signals that pgbeat sends, for code that has to set something up around a condition.

They are Celery's kind of signal: `pgbeat.condition_started.connect(receiver)`. A receiver takes
`sender`, the launcher's class, `schedule`, its row, and `**kwargs`. Whatever a receiver raises is
logged, and changes nothing else.
"""

from celery.utils.dispatch import Signal

condition_started = Signal(name="condition_started", providing_args={"schedule"})
"""Sent before a launcher's `check_conditions` and `prepare_job_data`, on the thread that runs them.

A `GenericLauncher` runs no code of the app's, so none is sent for it.
"""
condition_finished = Signal(name="condition_finished", providing_args={"schedule"})
"""Sent after them on the same thread, whether they returned or raised."""

#: Sent as a beat, or a command that evaluates schedules, starts.
evaluator_made = Signal(name="evaluator_made")
