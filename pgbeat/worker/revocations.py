"""Learns which tasks Celery revokes, in workers that run batches.

A member that waits for its batch has no message that a worker would drop, and its batch's run takes
it along in a process that knows of no revocations.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any
from uuid import UUID

from celery import Celery
from celery.utils.functional import maybe_list
from celery.worker.control import Panel
from sqlalchemy import Connection

from pgbeat.config import settings_of
from pgbeat.jobs.flow import batch_members
from pgbeat.jobs.policy.batches import is_batch
from pgbeat.worker.recording import process_recorder

_ORIGINAL = "pgbeat_original"


def follow(app: Celery, report: Callable[[str], None]) -> None:
    """Calls `report` in this worker with the id of each job that a command revokes.

    Where that names stamps, these are the members that wait and have one.
    """

    def report_ids(task_ids: Any) -> None:
        for each in maybe_list(task_ids) or ():
            with suppress(ValueError):  # of others, which are no jobs
                report(str(UUID(str(each))))

    def report_stamped(stamps: Mapping[str, Any] | list[str]) -> None:
        if isinstance(stamps, list):  # as Celery's command line has them
            stamps = dict(each.split("=")[:2] for each in stamps)

        def find(connection: Connection) -> None:
            namespace = settings_of(app).namespace
            for job_id, own in batch_members.stamps(connection, namespace, stamps):
                if any(_meet(own.get(name), value) for name, value in stamps.items()):
                    report(str(job_id))

        recorder = process_recorder.get()
        if recorder is not None:
            recorder.outbox.add_query(find)

    _precede(app, "revoke", "task_id", report_ids)
    _precede(app, "revoke_by_stamped_headers", "headers", report_stamped)


def _meet(own: Any, asked: Any) -> bool:
    """Returns whether a stamp has one of the values, as Celery compares them."""
    return any(value in (maybe_list(asked) or ()) for value in maybe_list(own) or ())


def _precede(app: Celery, command: str, name: str, act: Callable[[Any], None]) -> None:
    """Calls `act` before a command, with its argument of that name, if the app has batches."""
    original = getattr(Panel.data[command], _ORIGINAL, Panel.data[command])

    @wraps(original)
    def revoke_members(state: Any, *args: Any, **kwargs: Any) -> Any:
        if any(map(is_batch, app.tasks.values())):
            act(kwargs[name] if name in kwargs else args[0])
        return original(state, *args, **kwargs)

    setattr(revoke_members, _ORIGINAL, original)
    Panel.data[command] = revoke_members
