"""Provides `pgbeat.stack`, which asks a running task what it is doing."""

from uuid import UUID

from celery import Celery, current_app

from pgbeat.access import actors
from pgbeat.access.redaction import Redactor
from pgbeat.config import settings_of
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.running import stacks
from pgbeat.jobs.running.stacks import TIMEOUT, Stack
from pgbeat.jobs.writing import submissions


def stack(job_id: str | UUID, *, timeout: float = TIMEOUT, app: Celery | None = None) -> Stack:
    """Asks the process that runs a job where its task is, and returns the answer.

    Its `stack` is text like a traceback's, without values; `memory_mb` is the process's resident
    memory. The answer comes within about a second; `timeout` is in seconds.

    Raises `NotFound`, `InvalidTransition` if the job doesn't run, and `NoReply`.
    """
    app = app or current_app._get_current_object()
    settings, actor = settings_of(app), actors.user(is_admin=True)
    with submissions.opened_unit(app, settings, actor, joins=False) as unit:
        job = jobs.get(unit.connection, job_id, namespace=unit.namespace)
        return stacks.ask(unit.connection, Redactor(actor, {}, {}), job, timeout=timeout)
