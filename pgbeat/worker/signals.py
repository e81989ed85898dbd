"""Turns Celery's signals into records of executions, for the tasks that `pgbeat_track` selects.

`worker_init` calls `set_up` in every worker whose program has imported pgbeat, as the `celery`
command does.

A cancel request reaches a worker in two ways. Celery revokes the task: if it has not begun, or is
terminated, `_revoke` reports the job's end from the main process. And the recorder reads the
request (`Recorder._check_running`), so that a task which then reports progress or keeps a
checkpoint raises `Cancelled`, which `_end` records. Either way the recorder writes the end, and
`pgbeat.next_state` (SQL) decides the job's next state.
"""

import logging
import os
import random
import time
from threading import get_ident
from typing import Any, Literal

from celery import Celery, bootsteps, signals
from celery._state import get_current_task
from celery.states import SUCCESS

from pgbeat import log
from pgbeat.broker import message_ends
from pgbeat.broker.messages import AWAITED_HEADER, JOB_HEADER, consumer_of, runs_again
from pgbeat.config import Settings, direct_url
from pgbeat.errors import ConfigError
from pgbeat.jobs.policy import pinned_queues
from pgbeat.jobs.policy.batches import is_batch
from pgbeat.jobs.running.job_reports import JobReport
from pgbeat.jobs.running.untracked_tasks import Tally
from pgbeat.results.ending import abandon_current
from pgbeat.suggest import nearest_task
from pgbeat.worker import revocations, undecodable
from pgbeat.worker.finishing import attempt_ends
from pgbeat.worker.recording import attempts, process_recorder, shared_notes
from pgbeat.worker.recording.attempts import Attempt, Memory
from pgbeat.worker.recording.heartbeat import Heartbeat
from pgbeat.worker.recording.plain_tasks import is_trackable, job_maker, may_have_job
from pgbeat.worker.recording.recorder import Recorder
from pgbeat.worker.recording.stacks import StackWatch
from pgbeat.worker.reporting import ATTEMPT
from pgbeat.worker.start_checks import warn_of_other_database
from pgbeat.worker.task_logs import TaskLogHandler
from pgbeat.worker.unknown_tasks import UnknownTasks
from pgbeat.worker.worker_reports import WorkerReporter

logger = logging.getLogger("celery.worker.pgbeat")

#: Seconds for an ending process to write what is left to record.
_CHILD_PATIENCE, _MAIN_PATIENCE = 3.0, 5.0
#: Tasks of Celery and pgbeat.
_INTERNAL = ("celery.", "pgbeat.")
#: Pools with one process a task, and with one task a thread.
_PROCESSES, _THREADS = {"prefork", "processes"}, {"prefork", "processes", "solo", "threads"}


class TrackedWorker:
    """A worker whose executions are recorded, in its main process and its children."""

    def __init__(self, worker: Any, settings: Settings, pool: str) -> None:
        """Takes a `celery.worker.WorkController`."""
        self.app: Celery = worker.app
        self.settings, self._describe = settings, WorkerReporter(worker)
        self.all = settings.track == "all"
        self.pool, self.concurrency = pool, worker.concurrency or None
        self.name = str(worker.hostname or "")
        self.stacks = StackWatch(pool, worker.time_limit, worker.soft_time_limit)
        self.is_prefork = pool in _PROCESSES
        self.has_cpu_time = pool in _THREADS
        lines = settings.task_log_lines
        self.logs = TaskLogHandler(lines) if lines else None
        self.memory = Memory(resets=pool in _PROCESSES | {"solo"})
        self.main = os.getpid()
        #: Untracked tasks that the main process has received.
        self.untracked = Tally()
        # Chosen here, not by the database, so that children inherit it.
        self.id = random.SystemRandom().randrange(1, 2**31)

    def recorder(self) -> Recorder:
        """Returns a new recorder for this process."""
        if os.getpid() != self.main:
            return Recorder(self.app, self.settings, self.id)
        patience = float(self.app.conf.get("worker_lost_wait") or 10.0) + 2
        heartbeat = Heartbeat(
            self.settings,
            self.id,
            self.name,
            self.pool,
            self.concurrency,
            patience=patience,
            tasks=sorted(self.app.tasks),
            describe=self._describe,
            untracked=self.untracked,
        )
        # The heartbeat needs a session lock, which a pooler would break.
        url = direct_url(self.app.conf, self.settings.url)
        return Recorder(self.app, self.settings, self.id, url=url, heartbeat=heartbeat)


_tracked: TrackedWorker | None = None
#: Running attempts by task id and thread, which is faster than to look in the task's request.
_attempts: dict[tuple[str, int], Attempt] = {}


def set_up(worker: Any) -> None:
    """Records the executions of a Celery worker, as the app's settings say.

    `worker` is a `celery.worker.WorkController`.
    """
    global _tracked
    app = worker.app
    _disconnect()
    if _tracked is not None and _tracked.logs is not None:
        _tracked.logs.detach()
    _tracked = None
    warn_of_other_database(app)
    try:
        settings = Settings.load(app.conf)
    except ConfigError as error:
        # An app that doesn't use pgbeat needs no warning just because pgbeat is installed.
        level = logging.WARNING if _is_meant(app) else logging.DEBUG
        logger.log(level, "Executions are not recorded: %s", error)
        return
    app.steps["consumer"].add(UnknownTasks)
    if _task_of_line not in log.contexts:
        log.contexts.append(_task_of_line)
    pinned_queues.consume(app, settings.version)
    if settings.track == "off":
        return
    app.steps["consumer"].add(LeaveAtLast)
    pool = getattr(worker.pool_cls, "__module__", str(worker.pool_cls)).rpartition(".")[2]
    pool = {"thread": "threads"}.get(pool, pool)
    _tracked = TrackedWorker(worker, settings, pool)
    process_recorder.use(_tracked.recorder)
    shared_notes.share(_tracked.name if _tracked.is_prefork else None)
    message_ends.accept_as(_tracked.id)
    revocations.follow(app, _end_member)
    for signal, receiver in _RECEIVERS:
        signal.connect(receiver, weak=False)
    if settings.track != "all":
        signals.task_received.connect(_count_untracked, weak=False)
    if pool == "gevent":
        signals.task_received.connect(_wait_for_room, weak=False)


def _task_of_line() -> dict[str, str]:
    """Returns the running task and its id, which is its job's, for lines of the log."""
    request = getattr(get_current_task(), "request", None)
    if request is None or request.called_directly or not request.id:
        return {}
    return {"task": request.task, "task_id": request.id}


def _is_meant(app: Celery) -> bool:
    return any(str(key).startswith("pgbeat_") for key in app.conf) or any(
        key.startswith("PGBEAT_") for key in os.environ
    )


def _disconnect() -> None:
    process_recorder.use(None)
    shared_notes.share(None)
    message_ends.accept_as(None)
    for signal, receiver in _RECEIVERS:
        signal.disconnect(receiver)
    signals.task_received.disconnect(_wait_for_room)
    signals.task_received.disconnect(_count_untracked)


# ----- in the process that runs the task


def _begin(task_id: str, task: Any, **kwargs: Any) -> None:
    tracked, request = _tracked, task.request
    if tracked is None:
        return
    is_job = getattr(request, JOB_HEADER, None)
    if not is_job and not (tracked.all and is_trackable(task_id, task, request)):
        return
    if request.is_eager:
        return
    if tracked.logs is not None:
        tracked.logs.attach()
    tracked.memory.reset()
    attempt = getattr(request, ATTEMPT, None)
    if attempt is not None:  # one of a batch, which has been written
        _attempts[task_id, get_ident()] = attempt
        return
    attempt = Attempt(
        task_id,
        request.hostname or tracked.name,
        request.retries or 0,
        bool(task.acks_late),
        time.thread_time() if tracked.has_cpu_time else None,
    )
    if attempt.acks_late:
        attempt.consumer = consumer_of(request)
    if not is_job:
        # What takes the place of a task has its id.
        attempt.is_repeated = runs_again(request) or bool(request.replaced_task_nesting)
        attempt.makes = job_maker(tracked.settings.namespace, task, request)
    attempt.memory = tracked.memory
    attempt.awaited = getattr(request, AWAITED_HEADER, None)
    tracked.stacks.begin(attempt, task, request)
    setattr(request, ATTEMPT, attempt)
    _attempts[task_id, get_ident()] = attempt
    recorder = process_recorder.get()
    if recorder is not None and not is_batch(task):  # which writes all its members together
        recorder.record(attempt)


def _fail(sender: Any, task_id: str, exception: Any, einfo: Any = None, **kwargs: Any) -> None:
    """Keeps the traceback; in the main process, reports a job whose process died."""
    attempt = getattr(sender.request, ATTEMPT, None)
    if attempt is not None:
        if einfo is not None:
            attempt.traceback = attempts.text(str(einfo.traceback), attempts.TRACEBACK)
    elif (
        _tracked is not None
        and os.getpid() == _tracked.main
        and type(exception).__name__ in {"WorkerLostError", "TimeLimitExceeded"}
    ):
        _report_failure(sender, task_id, exception)


def _succeed(sender: Any, **kwargs: Any) -> None:
    """Notes that the result is stored, if it has one, and that its callbacks are sent."""
    attempt = getattr(sender.request, ATTEMPT, None)
    if attempt is not None:
        attempt.has_succeeded = True


def _end(task_id: str, task: Any, retval: Any = None, state: str | None = None, **kw: Any) -> None:
    tracked, attempt = _tracked, _attempts.pop((task_id, get_ident()), None)
    if attempt is None or tracked is None:
        return
    if attempt.is_recorded or attempt.is_deferred:
        return
    if state == SUCCESS and attempt_ends.is_interrupted(attempt, task, task_id):
        state = None
    if not attempt.is_settled and not attempt_ends.conclude(
        attempt, retval, state, is_process=tracked.is_prefork
    ):
        return
    abandon_current()  # what is recorded of that comes first
    recorder = process_recorder.get()
    if recorder is not None:
        recorder.record(attempt, awaited=attempt.awaited)


# ----- in the worker's main process


def _report(
    job_id: str,
    state: Literal["failed", "cancelled"],
    error: str,
    *,
    job_state: str | None = None,
    lost: bool = False,
    **more: bool,
) -> None:
    recorder = process_recorder.get()
    if recorder is not None and _tracked is not None:
        name = _tracked.name
        report = JobReport(job_id, state, error, job_state or state, lost, worker=name, **more)
        if lost:
            recorder.adopt()  # what the process had noted itself is recorded first
        recorder.outbox.add_report(report)


def _report_failure(task: Any, task_id: str, exception: BaseException) -> None:
    is_timeout = type(exception).__name__ == "TimeLimitExceeded"
    acks = getattr(task, "acks_on_timeout", None)
    acks = task.acks_on_failure_or_timeout if acks is None else acks
    goes_back = is_timeout and task.acks_late and not acks
    _report(
        task_id,
        "failed",
        attempts.error_text(exception),
        job_state="pending" if goes_back else "failed",
        lost=not is_timeout,
        acks_late=bool(task.acks_late),
    )


def _wait_for_room(sender: Any, request: Any, **kwargs: Any) -> None:
    """Waits until gevent's pool has room.

    Otherwise the consumer would wait after its check for revoked tasks, and a task that is revoked
    meanwhile would begin.
    """
    sender.pool._pool.wait_available()


def _count_untracked(request: Any, **kwargs: Any) -> None:
    """Counts a task that is no job."""
    is_job = request.request_dict.get(JOB_HEADER)
    if _tracked is not None and not (is_job or request.name.startswith(_INTERNAL)):
        _tracked.untracked.count(request.name)


def _revoke(
    request: Any, sender: Any, terminated: bool = False, expired: bool = False, **kwargs: Any
) -> None:
    """Reports the end of a job that was dropped before it began, or terminated.

    A task that was published without a job has one if it waits for its retry.
    """
    is_job = bool(getattr(request, JOB_HEADER, None))
    if _tracked is None or not (is_job or (_tracked.all and may_have_job(request.id))):
        return
    reason = "terminated" if terminated else "expired" if expired else "revoked"
    _report(str(request.id), "cancelled", reason, began=terminated)


def _end_member(task_id: str) -> None:
    """Reports the end of a revoked task that is a member of a batch, if it waits."""
    _report(task_id, "cancelled", "revoked", began=False, is_answered=False, is_member=True)


def _refuse(message: Any, exc: Any, **kwargs: Any) -> None:
    """Records the failure of a job whose message is not well formed."""
    headers = getattr(message, "headers", None) or {}
    if headers.get(JOB_HEADER) and headers.get("id"):
        what = f"the worker refused its message: {attempts.error_text(exc)}"
        _report(str(headers["id"]), "failed", what, began=False, is_answered=False)


def _refuse_unknown(message: Any, name: str = "", **kwargs: Any) -> None:
    """Records the failure of a job whose task this worker hasn't registered."""
    headers = getattr(message, "headers", None) or {}
    if _tracked is None or not (headers.get(JOB_HEADER) and headers.get("id")):
        return
    similar = nearest_task(name, list(_tracked.app.tasks))
    hint = f"; did you mean {similar!r}?" if similar else ""
    what = f"NotRegistered: worker {_tracked.name} has not registered task {name!r}{hint}"
    _report(str(headers["id"]), "failed", what, began=False, is_unknown=True)


def _live(sender: Any, **kwargs: Any) -> None:
    """Starts the recorder, so that the worker is registered before its first task."""
    process_recorder.get()
    undecodable.follow(sender, _refuse)


def _leave(**kwargs: Any) -> None:
    process_recorder.close(_MAIN_PATIENCE)


class LeaveAtLast(bootsteps.StartStopStep):
    """Leaves also at a cold shutdown, for which Celery sends no `worker_shutdown`."""

    def shutdown(self, c: Any) -> None:
        """Leaves."""
        _leave()


def _leave_child(**kwargs: Any) -> None:
    process_recorder.close(_CHILD_PATIENCE)


_RECEIVERS = (
    (signals.task_prerun, _begin),
    (signals.task_success, _succeed),
    (signals.task_failure, _fail),
    (signals.task_postrun, _end),
    (signals.task_revoked, _revoke),
    (signals.task_unknown, _refuse_unknown),
    (signals.task_rejected, _refuse),
    (signals.worker_ready, _live),
    (signals.worker_shutdown, _leave),
    (signals.worker_process_shutdown, _leave_child),
)
