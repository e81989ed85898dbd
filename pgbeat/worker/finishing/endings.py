"""Makes a worker's tasks end in one transaction, where they can.

`pgbeat.results.ending` has the transaction. Here the tasks of a worker get one, and it gets the
execution that the worker records.
"""

from typing import Any

from celery import Celery
from celery._state import get_current_task
from celery.exceptions import Ignore, Reject, Retry
from sqlalchemy.exc import DBAPIError

from pgbeat.broker.messages import JOB_HEADER, consumer_of
from pgbeat.broker.publishing.transaction import require_broker
from pgbeat.config import Settings, broker_database, delays_in_table, same_database
from pgbeat.errors import CannotFinish, ConfigError, PgbeatError
from pgbeat.jobs.flow import lifecycle
from pgbeat.jobs.lanes.model import Room
from pgbeat.jobs.policy import batches
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.running import executions
from pgbeat.jobs.states import endings
from pgbeat.results.backend import ResultBackend
from pgbeat.results.ending import Claim, ClaimLost, TaskEnding, ending_of
from pgbeat.results.store import Joined, wait_at_most
from pgbeat.worker.finishing import attempt_ends
from pgbeat.worker.finishing.batch_ends import BATCH_RUN, BatchEnding, BatchRun, MemberEnding
from pgbeat.worker.recording import execution_batches, process_recorder
from pgbeat.worker.recording.attempts import Attempt
from pgbeat.worker.reporting import ATTEMPT

#: The option of a task that replaces the setting `pgbeat_finish`.
OPTION = "pgbeat_finish"
# What `CannotFinish` says of a session.
COMMITTED = (
    "the transaction was committed, rolled back or closed before the task ended; leave that to "
    "pgbeat.finish, as in `with pgbeat.finish(Session()) as session:`"
)
NEEDS_PSYCOPG = (
    "the session uses the driver %s; pgbeat.finish needs psycopg 3, as in postgresql+psycopg://…"
)
#: Seconds that the end of a task waits for the row of its job, if another transaction has it.
_LOCK_PATIENCE = 10.0


def tasks(app: Celery) -> dict[str, bool]:
    """Returns a worker's tasks that can end in one transaction, and whether they always do.

    Those that run in batches do.

    Raises `SystemExit`, with one line for each, if tasks must end in one transaction that can't.
    """
    try:
        settings = Settings.load(app.conf)
    except ConfigError:  # a worker that doesn't use pgbeat
        return {}
    can: dict[str, bool] = {}
    problems, general = [], _app_obstacle(app)
    for name, task in sorted(app.tasks.items()):
        option = getattr(task, OPTION, None)
        is_batch = batches.is_batch(task)
        must = is_batch or (settings.finish if option is None else option)
        if must is False or name.startswith("celery."):
            continue
        why = general or _task_obstacle(task)
        if is_batch and settings.track == "off":
            why = "it runs in batches, and this worker does not record executions (pgbeat_track)"
        if why is None:
            can[name] = bool(must)
        elif option or is_batch or (must and general):
            problems.append(f"pgbeat: task {name!r} can't end in one transaction: {why}")
    if problems:
        raise SystemExit("\n".join(problems))
    return can


def obstacle(task: Any) -> str:
    """Returns why a task that is running can't end in one transaction."""
    reason = _app_obstacle(task.app) or _task_obstacle(task)
    if reason is None and getattr(task, OPTION, None) is False:
        reason = f"its option {OPTION} is off"
    if reason is None and getattr(task.request, JOB_HEADER, None):
        reason = "it is a job, and this worker does not record executions (pgbeat_track)"
    return f"task {task.name!r} can't end in one transaction: " + (
        reason
        or "its message did not come from pgbeat's broker, or the setting pgbeat_finish is off"
    )


def current_ending() -> tuple[TaskEnding | None, CannotFinish | None]:
    """Returns how the running task ends, and why that can't be in one transaction."""
    task = get_current_task()
    request = None if task is None else task.request
    if request is None or request.called_directly or request.is_eager:
        return None, None
    ending = ending_of(request)
    if ending is None or ending.is_over:
        return None, CannotFinish(obstacle(task))
    return ending, None


def _app_obstacle(app: Celery) -> str | None:
    if not delays_in_table(app.conf):
        return "the broker is not pgbeat's (broker_url = 'pgbeat+postgresql://…')"
    return _backend_obstacle(app, app.backend)


def _backend_obstacle(app: Celery, backend: Any) -> str | None:
    if not isinstance(backend, ResultBackend):
        return "the result backend is not pgbeat's (result_backend = 'pgbeat://')"
    if same_database(broker_database(app.conf), backend.database):
        return None
    # Other addresses may lead to the same database: a pooler's, or another name of the host.
    try:
        with backend.store.work() as working:
            require_broker(working.connection, app)
    except ConfigError:
        return "the result backend is in another database than the broker"
    except (DBAPIError, PgbeatError) as error:
        return f"it is not known whether results are in the broker's database: {error}"
    return None


def _task_obstacle(task: Any) -> str | None:
    if not task.acks_late:
        return "its message is acknowledged before it runs; set acks_late=True"
    app = task.app
    return None if task.backend is app.backend else _backend_obstacle(app, task.backend)


def begin(task: Any, *, is_always: bool) -> TaskEnding | None:
    """Returns how the run that begins will end; `None` if that can't be in one transaction."""
    request, before = task.request, ending_of(task.request)
    if before is not None and before.has_raised and not before.is_over:
        before.has_raised = False
        return before
    # A task may call its own `run`, which is a part of it.
    if request.called_directly or request.is_eager or before is not None:
        return None
    run: BatchRun | None = getattr(request, BATCH_RUN, None)
    if run is not None:
        return MemberEnding(task, run, RecordedEnd(getattr(request, ATTEMPT)))
    consumer = consumer_of(request)
    if consumer is None:
        return None
    attempt: Attempt | None = getattr(request, ATTEMPT, None)
    if attempt is None and getattr(request, JOB_HEADER, None):
        return None
    claim = Claim(request.properties["delivery_tag"], consumer)
    if attempt is not None and batches.is_batch(task):
        return BatchEnding(task, claim, RecordedEnd(attempt))
    ending = TaskEnding(task.backend, task, claim, is_always=is_always)
    if attempt is not None:
        ending.execution = RecordedEnd(attempt)
    return ending


def settle(task: Any, error: BaseException, ending: TaskEnding | None) -> None:
    """Discards the task's writes; if it is sent again or replaced, that is its end."""
    if ending is not None:
        ending.give_up()
        ending.has_raised = True
        if isinstance(error, Retry | Ignore):
            ending.replaced(error)
        elif isinstance(error, Reject) and isinstance(ending, BatchEnding | MemberEnding):
            ending.rejected(error)


class RecordedEnd:
    """Records the end of an attempt in the transaction that ends its task.

    The attempt is withdrawn from the recorder before its end is known. If the transaction is not
    committed, Celery's `task_postrun` gives it back, with how the run ended after all.
    """

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        #: Others that end in the same transaction: the members of its batch.
        self.others: list[Attempt] = []
        self._lanes: set[Room] = set()

    def succeeded(self, value: Any) -> None:
        """Notes the task's return value."""
        self._withdraw()
        attempt_ends.conclude(self.attempt, value, "SUCCESS")

    def raised(self, error: BaseException, traceback: Any) -> None:
        """Notes the task's error."""
        self._withdraw()
        if self.attempt.raised is not None:
            error, traceback = self.attempt.raised, None
        state = "RETRY" if isinstance(error, Retry) else "IGNORED"
        if not isinstance(error, Retry | Ignore):
            state = "FAILURE"
        attempt_ends.conclude(self.attempt, error, state, traceback)

    def lost(self, error: BaseException) -> None:
        """Notes that nothing of it is kept, whatever Celery says of the task's end."""
        self.raised(error, None)
        self.attempt.is_settled = True

    def _withdraw(self) -> None:
        recorder = process_recorder.get()
        if recorder is not None:
            recorder.outbox.withdraw(self.attempt)

    def write(self, working: Joined, *, is_once: bool) -> bool:
        """Writes the attempt, and the consequences of its job's end.

        Returns whether it asks for another run, and its job has ended: it was cancelled.

        Raises `ClaimLost` if that has ended otherwise: somebody cancelled it before its start was
        recorded, or the worker that had the message before says that one of its processes died with
        it, and was killed before it acknowledged the message. With `is_once` also if another run
        has completed it: what this one wrote is there already.
        """
        recorder = process_recorder.get()
        if recorder is None:
            return False
        wait_at_most(working, _LOCK_PATIENCE)
        batch = [self.attempt, *self.others]
        ended, unmoved = execution_batches.write(
            working.connection, working.prepared, batch, recorder.worker_id
        )
        for attempt in batch:
            attempt.was_tried = attempt.was_tried or not attempt.is_known
        for job_id in unmoved:
            state = endings.end_state(working.connection, str(job_id))
            if state is not None and (is_once or state != "completed"):
                raise ClaimLost(f"its job has {state} meanwhile")
        if ended:
            self._lanes = lifecycle.follow(working.connection, recorder.new_publisher(), ended)
        if self.attempt.job_state not in executions.UNDECIDED:
            return False
        return bool(endings.ended_among(working.connection, [self.attempt.job_id]))

    def lock(self, working: Joined) -> None:
        """Locks the jobs, for a caller that acknowledges the message before it writes them."""
        wait_at_most(working, _LOCK_PATIENCE)
        jobs.lock(working.connection, [run.job_id for run in (self.attempt, *self.others)])

    def committed(self) -> None:
        """Dispatches the lanes that have room now."""
        recorder = process_recorder.get()
        if recorder is not None:
            recorder.was_recorded(self.attempt, self._lanes)
            for attempt in self.others:
                recorder.was_recorded(attempt, ())
