"""Defines the errors that pgbeat raises.

    PgbeatError
    ├── InvalidInput          the input is invalid; lists every problem
    │   ├── ConfigError       settings, transport options or the DSN
    │   │   └── CannotPublish     the app or its broker is not set up to publish messages
    │   ├── InvalidSchedule   a schedule, or something that it names doesn't exist
    │   │   ├── InvalidTimetable  cron expression, interval or time zone
    │   │   ├── InvalidCalendar   a calendar's definition
    │   │   ├── InvalidPlaceholder  a placeholder in a row's arguments
    │   │   ├── UnknownTask       a task that the app has not registered
    │   │   └── UnknownLauncher   a launcher that the app has not registered
    │   └── InvalidJob        a job, lane, group, template or webhook
    ├── SchemaError           the database's schema is missing, older or newer than this code
    │   └── Fenced                the database is a copy that is not accepted yet
    ├── InvalidTransition     the state of a job or a group doesn't allow the verb
    ├── Forbidden             the actor lacks the permission
    ├── InvalidToken          a token or JWT is missing, unknown, expired or revoked
    ├── NotUnique             an unfinished job has the same unique key
    ├── TooMany               a user makes more changes in a minute than the settings allow
    ├── NoSlot                a lane had no free slot in time for a direct execution
    ├── NotFound              nothing has that name or id
    ├── AlreadyExists         the name is taken
    ├── Busy                  another session is changing the row
    ├── QueueLocked           a queue is exclusive to another process
    ├── NoReply               a worker has not answered in time
    ├── WorkerRefused         a worker can't carry out a command
    ├── BrokerUnavailable     the broker can't be reached, or refuses
    ├── CannotFinish          a task can't end in one transaction with what it wrote
    ├── CannotStep            a task can't have steps, or not here
    ├── TimedOut              the event that a task waited for has not come in time
    ├── SqlFailed             the statement of a job of `pgbeat.sql` failed, or is not allowed
    │   └── SqlTimeout            it took too long
    └── ConditionError        a condition raised, was refused or returned an invalid value
        └── ConditionTimeout  a condition or preparation took too long

Programs rely on `code`, the kind of error, and on `problems`, each of which names its field.
Messages are for people and may change. Each is complete: what is wrong, and what would be right.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Self


class Problem(NamedTuple):
    """One mistake in the input."""

    #: Path of the field, such as `job_policy.lane` or `kwargs.days[0]`; "" for the whole input.
    field: str
    #: The kind of mistake, for programs: `required`, `out_of_range`, `unknown` …
    code: str
    #: What is wrong and what would be right, for people.
    message: str

    @property
    def root(self) -> str:
        """Returns the first field of the path: `job_policy` for `job_policy.lane`."""
        return self.field.partition("[")[0].partition(".")[0]

    def within(self, path: str) -> "Problem":
        """Returns the problem with its field below the field `path`."""
        if not self.field or not path:
            return self._replace(field=self.field or path)
        return self._replace(field=path + ("" if self.field[0] == "[" else ".") + self.field)


#: What the codes of problems mean. A problem of no finer kind has its error's code.
PROBLEM_CODES = {
    "required": "it is missing or empty",
    "malformed": "it has another type or form",
    "out_of_range": "the form is right, the amount isn't",
    "too_long": "it is longer than allowed",
    "too_short": "it is shorter than allowed",
    "unknown": "it names something that doesn't exist",
    "unknown_field": "there is no such field",
    "conflict": "it conflicts with another field",
    "cycle": "members of a group wait for each other",
    "reserved": "only Celery or pgbeat may set it",
    "in_use": "a schedule, template, job or other row still uses it",
    "pending": "a delivery is not finished yet",
    "unstorable": "Postgres can't store it",
    "no_times": "the schedule has no due times but those that follow another one",
    "not_installed": "an extra of pgbeat is not installed",
}


class PgbeatError(Exception):
    """Base of all errors raised by pgbeat."""

    #: The kind of error, for programs. It stays the same when the message is reworded.
    code = "error"

    def __init__(
        self, message: str, *, code: str | None = None, field: str = "", advice: str = ""
    ) -> None:
        """Takes what is wrong, and separately what to do about it (`advice`)."""
        super().__init__(f"{message}; {advice}" if advice else message)
        self.message, self.field, self.advice = message, field, advice
        self.code = code or self.code

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Returns the mistakes: at least one."""
        return (Problem(self.field, self.code, str(self)),)


class InvalidInput(PgbeatError):
    """The input is invalid."""

    code = "invalid"

    def __init__(self, problems: str | Iterable[Problem], *, subject: str = "") -> None:
        """Takes all problems, or one sentence about the whole input.

        `subject` is the thing that has them, such as `lane 'gpu'`, if that is not obvious.
        """
        if isinstance(problems, str):
            problems = [Problem("", self.code, problems)]
        self._problems, self.subject = tuple(problems), subject
        super().__init__(self._text(), field=self._problems[0].field)

    def _text(self) -> str:
        head = f"{self.subject}: " if self.subject else ""
        return head + "; ".join(problem.message for problem in self._problems)

    def _in_lines(self, heading: str) -> str:
        """Returns the heading, and each problem on its own line."""
        return "\n  ".join([heading, *(problem.message for problem in self._problems)])

    @classmethod
    def of(cls, field: str, code: str, message: str, *, subject: str = "") -> Self:
        """Returns an error with one problem."""
        return cls([Problem(field, code, message)], subject=subject)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Returns the mistakes: at least one."""
        return self._problems


class Problems(list[Problem]):
    """Collects problems, to report all of them at once."""

    def add(self, field: str, code: str, message: str) -> None:
        """Adds a problem."""
        self.append(Problem(field, code, message))

    @contextmanager
    def within(self, path: str = "") -> Iterator[None]:
        """Catches an `InvalidInput` that the block raises, and adds its problems below `path`."""
        try:
            yield
        except InvalidInput as error:
            self += [problem.within(path) for problem in error.problems]

    def raise_if_any(self, kind: type[InvalidInput], *, subject: str = "") -> None:
        """Raises an error of that kind with all problems, if there are any."""
        if self:
            raise kind(self, subject=subject)


class ConfigError(InvalidInput):
    """Settings are wrong. The fields are the names of settings or options."""

    code = "invalid_config"

    def _text(self) -> str:
        return self._in_lines(f"{self.subject}:") if self.subject else super()._text()


class CannotPublish(ConfigError):
    """The app or its broker is not set up to publish messages."""


class SchemaError(PgbeatError):
    """The database's schema is missing, older or newer than this version of pgbeat needs."""

    code = "wrong_schema"


class Fenced(SchemaError):
    """The database is a copy: beats and workers stay idle until a person has said what it is."""

    code = "fenced"


class InvalidSchedule(InvalidInput):
    """A schedule is invalid."""

    code = "invalid_schedule"


class InvalidTimetable(InvalidSchedule):
    """A cron expression, an interval or a time zone is invalid."""

    code = "invalid_timetable"


class InvalidCalendar(InvalidSchedule):
    """A calendar is invalid."""

    code = "invalid_calendar"

    def _text(self) -> str:
        count = len(self.problems)
        if count == 1:
            return super()._text()
        return self._in_lines(f"{self.subject} has {count} mistakes:")


class InvalidPlaceholder(InvalidSchedule):
    """Placeholders in arguments are invalid. The fields are paths, such as `kwargs.days[0]`."""

    code = "invalid_placeholder"


class UnknownTask(InvalidSchedule):
    """A schedule names a task that the app has not registered."""

    code = "unknown_task"


class UnknownLauncher(InvalidSchedule):
    """A schedule names a launcher that the app has not registered."""

    code = "unknown_launcher"


class InvalidJob(InvalidInput):
    """A job, lane, group, template or webhook is invalid."""

    code = "invalid_job"


class InvalidTransition(PgbeatError):
    """The state of a job or a group doesn't allow the verb."""

    code = "invalid_transition"
    #: The job or group, its state, and what can't be done with it: `cancelled`.
    job: object = None
    state = verb = ""

    @classmethod
    def of(
        cls, job: object, state: str, verb: str, hint: str = "", *, noun: str = "job"
    ) -> "InvalidTransition":
        """Returns the error of a job, or another `noun`, in that state."""
        error = cls(f"{noun} {job} is {state} and can't be {verb}", advice=hint)
        error.job, error.state, error.verb = job, state, verb
        return error


class Forbidden(PgbeatError):
    """The actor lacks the permission."""

    code = "forbidden"

    def __init__(
        self, message: str, *, code: str | None = None, field: str = "", is_for_admins: bool = False
    ) -> None:
        """Takes the message, and whether an administrator may do it."""
        super().__init__(message, code=code, field=field)
        self.is_for_admins = is_for_admins


class InvalidToken(PgbeatError):
    """A token or JWT is missing, unknown, expired or revoked."""

    code = "invalid_token"


class NotUnique(PgbeatError):
    """An unfinished job has the same unique key."""

    code = "not_unique"


class TooMany(PgbeatError):
    """A user makes more changes in a minute than the settings allow, or too many ask for stacks."""

    code = "too_many"

    def __init__(self, message: str, *, seconds: float = 60.0, advice: str = "") -> None:
        """Takes the seconds after which there may be more."""
        super().__init__(message, advice=advice)
        self.seconds = seconds


class NoSlot(PgbeatError):
    """A lane had no free slot within the time given."""

    code = "no_slot"


class NotFound(PgbeatError):
    """Nothing has that name or id."""

    code = "not_found"


class AlreadyExists(PgbeatError):
    """The name is taken."""

    code = "already_exists"


class Busy(PgbeatError):
    """Another session is changing the row at this moment."""

    code = "busy"


class QueueLocked(PgbeatError):
    """A queue is exclusive to another process."""

    code = "queue_locked"


class NoReply(PgbeatError):
    """A worker has not answered in time."""

    code = "no_reply"


class WorkerRefused(PgbeatError):
    """A worker can't carry out a command."""

    code = "worker_refused"


class BrokerUnavailable(PgbeatError):
    """The broker can't be reached, or refuses."""

    code = "broker_unavailable"


class CannotFinish(PgbeatError):
    """A task can't end in one transaction with what it wrote (`pgbeat.finish`)."""

    code = "cannot_finish"


class CannotStep(PgbeatError):
    """A task can't have steps, or not here (`pgbeat.step`, `sleep`, `wait_for`).

    The code says why: `not_pgbeats_broker`, `no_job`, `not_late` (without `acks_late`), `batch`,
    `nested` (within another step), `committed` (its function ended the session's transaction).
    """

    code = "cannot_step"


class TimedOut(PgbeatError):
    """The event that a task waited for has not come in time (`pgbeat.wait_for`)."""

    code = "timed_out"


class SqlFailed(PgbeatError):
    """The statement of a job of the task `pgbeat.sql` failed, or is not allowed."""

    code = "sql_failed"


class SqlTimeout(SqlFailed):
    """The statement of a job of the task `pgbeat.sql` took too long."""

    code = "sql_timeout"


class ConditionError(PgbeatError):
    """A launcher's condition or preparation failed."""

    code = "condition_failed"


class ConditionTimeout(ConditionError):
    """A launcher's condition or preparation took too long."""

    code = "condition_timeout"
