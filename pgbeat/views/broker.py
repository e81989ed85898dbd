"""Queues, dead letters, workers and their versions."""

from pgbeat.broker.dead_letters import DeadLetter
from pgbeat.broker.queues import QueueSummary
from pgbeat.monitoring.app_versions import AppVersion
from pgbeat.monitoring.worker_usage import WorkerUsage
from pgbeat.views import View


def queue(row: QueueSummary) -> View:
    """Returns a queue with its numbers of messages."""
    return row._asdict() | {"is_internal": row.is_internal}


def dead_letter(row: DeadLetter) -> View:
    """Returns a dead letter without its message."""
    columns = {name: value for name, value in row._asdict().items() if name != "payload"}
    return columns | {"task": row.task, "task_id": row.task_id}


def worker(row: WorkerUsage) -> View:
    """Returns a worker with its running tasks."""
    return row._asdict() | {"tasks": [task._asdict() for task in row.tasks]}


def app_version(row: AppVersion) -> View:
    """Returns a version of the app with its state."""
    return row._asdict() | {"state": row.state}
