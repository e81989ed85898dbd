"""Every error that pgbeat raises on purpose.

    PgbeatError
    ├── InvalidInput          what was given is not well formed; lists every problem at once
    │   ├── ConfigError       settings, transport options or the DSN
    │   ├── InvalidSchedule   a schedule, or its row names something that isn't there
    │   │   ├── InvalidTimetable  cron expression, interval or time zone
    │   │   ├── InvalidCalendar   a calendar's definition
    │   │   ├── InvalidPlaceholder  a placeholder in a row's arguments
    │   │   ├── UnknownTask       a task that the app has not registered
    │   │   └── UnknownLauncher   a launcher that the app has not registered
    │   └── InvalidJob        a job, lane, group, template or webhook
    ├── SchemaError           the database's schema is missing, older or newer than this code
    ├── InvalidTransition     the state of a job or a group doesn't allow the verb
    ├── Forbidden             the actor may not do that
    ├── InvalidToken          a token or JWT is missing, unknown, expired or revoked
    ├── NotUnique             an unfinished job has that unique key
    ├── NoSlot                a lane had no free slot in time for a direct execution
    ├── NotFound              nothing of that name
    ├── AlreadyExists         something of that name exists
    ├── Busy                  another session is changing the row
    ├── QueueLocked           a queue is exclusive to another process
    ├── BrokerUnavailable     the broker can't be reached, or refused
    └── ConditionError        a condition raised, was refused or returned something else
        └── ConditionTimeout  a condition or preparation took longer than it may

Programs go by `code`, which says what kind of error it is, and by `problems`, each with the field
at fault. Sentences are for people, and may change: a message stands on its own, and says what is
wrong and what would be right.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Self


class Problem(NamedTuple):
    """One thing that is wrong."""

    #: Path of the field at fault, such as `job_policy.lane` or `kwargs.days[0]`; "" for the whole.
    field: str
    #: What is wrong, for programs: `required`, `out_of_range`, `unknown` …
    code: str
    #: What is wrong and what would be right, for people.
    message: str

    @property
    def root(self) -> str:
        """The field that the path begins with: `job_policy` of `job_policy.lane`."""
        return self.field.partition("[")[0].partition(".")[0]

    def within(self, path: str) -> "Problem":
        """Returns the problem as one of what stands in the field `path`."""
        if not self.field or not path:
            return self._replace(field=self.field or path)
        return self._replace(field=path + ("" if self.field[0] == "[" else ".") + self.field)


class PgbeatError(Exception):
    """Base of all errors raised by pgbeat."""

    #: What kind of error it is, for programs. It stays the same when the message is reworded.
    code = "error"

    def __init__(
        self, message: str, *, code: str | None = None, field: str = "", advice: str = ""
    ) -> None:
        """Takes what is wrong and, apart from that, what to do about it (`advice`)."""
        super().__init__(f"{message}; {advice}" if advice else message)
        self.message, self.field, self.advice = message, field, advice
        self.code = code or self.code

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong, one by one: at least one thing."""
        return (Problem(self.field, self.code, str(self)),)


class InvalidInput(PgbeatError):
    """What was given is not well formed."""

    code = "invalid"

    def __init__(self, problems: str | Iterable[Problem], *, subject: str = "") -> None:
        """Takes all problems, or a sentence on the whole, and the `subject` that has them, such as
        `lane 'gpu'`, where that is not obvious."""
        if isinstance(problems, str):
            problems = [Problem("", self.code, problems)]
        self._problems, self.subject = tuple(problems), subject
        super().__init__(self._text(), field=self._problems[0].field)

    def _text(self) -> str:
        head = f"{self.subject}: " if self.subject else ""
        return head + "; ".join(each.message for each in self._problems)

    def _in_lines(self, heading: str) -> str:
        """Returns the heading, and each problem on a line of its own."""
        return "\n  ".join([heading, *(each.message for each in self._problems)])

    @classmethod
    def of(cls, field: str, code: str, message: str, *, subject: str = "") -> Self:
        """Returns the error of one problem."""
        return cls([Problem(field, code, message)], subject=subject)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong, one by one."""
        return self._problems


class Problems(list[Problem]):
    """Collects what is wrong, so that all of it is reported at once."""

    def add(self, field: str, code: str, message: str) -> None:
        """Adds a problem."""
        self.append(Problem(field, code, message))

    @contextmanager
    def within(self, path: str = "") -> Iterator[None]:
        """Adds the problems of an `InvalidInput` that the block raises, as those of the field
        `path`, and goes on after the block."""
        try:
            yield
        except InvalidInput as error:
            self += [each.within(path) for each in error.problems]

    def raise_if_any(self, kind: type[InvalidInput], *, subject: str = "") -> None:
        """Raises an error of that kind that lists the problems, if there are any."""
        if self:
            raise kind(self, subject=subject)


class ConfigError(InvalidInput):
    """Settings are wrong. The fields are the names of settings or options."""

    code = "invalid_config"

    def _text(self) -> str:
        return self._in_lines(f"{self.subject}:") if self.subject else super()._text()


class SchemaError(PgbeatError):
    """The database does not hold the schema that this version of pgbeat works with."""

    code = "wrong_schema"


class InvalidSchedule(InvalidInput):
    """A schedule is not well formed."""

    code = "invalid_schedule"


class InvalidTimetable(InvalidSchedule):
    """A cron expression, an interval or a time zone can't be understood."""

    code = "invalid_timetable"


class InvalidCalendar(InvalidSchedule):
    """A calendar can't be understood."""

    code = "invalid_calendar"

    def _text(self) -> str:
        count = len(self.problems)
        if count == 1:
            return super()._text()
        return self._in_lines(f"{self.subject} has {count} mistakes:")


class InvalidPlaceholder(InvalidSchedule):
    """Placeholders in a row's arguments can't be understood. The fields are their places, such as
    `kwargs.days[0]`."""

    code = "invalid_placeholder"


class UnknownTask(InvalidSchedule):
    """A schedule names a task that the app has not registered."""

    code = "unknown_task"


class UnknownLauncher(InvalidSchedule):
    """A schedule names a launcher that the app has not registered."""

    code = "unknown_launcher"


class InvalidJob(InvalidInput):
    """A job, or what makes or limits jobs, is not well formed."""

    code = "invalid_job"


class InvalidTransition(PgbeatError):
    """A job, or a group, is in a state that doesn't allow the verb."""

    code = "invalid_transition"

    def __init__(
        self, job: object, state: str, verb: str, hint: str = "", *, noun: str = "job"
    ) -> None:
        super().__init__(f"{noun} {job} is {state} and can't be {verb}", advice=hint)
        self.job, self.state, self.verb = job, state, verb


class Forbidden(PgbeatError):
    """The actor has no permission for that."""

    code = "forbidden"

    def __init__(self, message: str, *, field: str = "", is_for_admins: bool = False) -> None:
        """Takes what is forbidden, and whether an administrator may do it."""
        super().__init__(message, field=field)
        self.is_for_admins = is_for_admins


class InvalidToken(PgbeatError):
    """The caller is unknown: no token or JWT, or one that is unknown, expired or revoked."""

    code = "invalid_token"


class NotUnique(PgbeatError):
    """An unfinished job has the same unique key."""

    code = "not_unique"


class NoSlot(PgbeatError):
    """A lane had no free slot within the time given."""

    code = "no_slot"


class NotFound(PgbeatError):
    """There is nothing of that name."""

    code = "not_found"


class AlreadyExists(PgbeatError):
    """Something of that name exists."""

    code = "already_exists"


class Busy(PgbeatError):
    """Another session is changing the row at this moment."""

    code = "busy"


class QueueLocked(PgbeatError):
    """A queue is exclusive to another process."""

    code = "queue_locked"


class BrokerUnavailable(PgbeatError):
    """The broker can't be reached, or refused."""

    code = "broker_unavailable"


class ConditionError(PgbeatError):
    """A launcher's condition or preparation failed."""

    code = "condition_failed"


class ConditionTimeout(ConditionError):
    """A launcher's condition or preparation took longer than it may."""

    code = "condition_timeout"
