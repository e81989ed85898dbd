"""Every error that pgbeat raises on purpose.

    PgbeatError
    ├── ConfigError           settings or the DSN are wrong; lists every mistake at once
    ├── SchemaError           the database's schema is missing, older or newer than this code
    ├── InvalidSchedule       a row names something that isn't there, or isn't well formed
    │   ├── InvalidTimetable  cron expression, interval or time zone
    │   ├── InvalidCalendar   a calendar's definition; lists every mistake at once
    │   ├── InvalidPlaceholder  a placeholder in a row's arguments; lists every mistake at once
    │   ├── UnknownTask       a task that the app has not registered
    │   └── UnknownLauncher   a launcher that the app has not registered
    ├── InvalidJob            a job, lane, group, template or webhook is not well formed
    ├── InvalidTransition     a job's state is not one that the verb goes from
    ├── Forbidden             the actor may not do that with that job
    ├── InvalidToken          nobody says who asks, or a token or JWT is not, or no longer, good
    ├── NotUnique             an unfinished job has that unique key
    ├── NoSlot                a lane had no free slot in time for a direct execution
    ├── NotFound              nothing of that name
    ├── AlreadyExists         a schedule of that name is there
    ├── Busy                  the schedule is being changed by somebody else
    ├── QueueLocked           a queue is exclusive to another process
    └── ConditionError        a condition raised, was refused or returned something else
        └── ConditionTimeout  a condition or preparation took longer than it may

A message names the thing, what is wrong with it, and what would be right.
"""


class PgbeatError(Exception):
    """Base of all errors raised by pgbeat."""


class ConfigError(PgbeatError):
    """Settings are wrong. The message lists every mistake."""


class SchemaError(PgbeatError):
    """The database does not hold the schema that this version of pgbeat works with."""


class InvalidSchedule(PgbeatError):
    """A schedule is not well formed."""


class InvalidTimetable(InvalidSchedule):
    """A cron expression, an interval or a time zone can't be understood."""


class InvalidCalendar(InvalidSchedule):
    """A calendar that schedules name can't be understood, or not be done without."""


class InvalidPlaceholder(InvalidSchedule):
    """Placeholders in a row's arguments can't be understood. The message lists every mistake.

    `mistakes` has the place of each, such as `kwargs.days[0]`, and what is wrong there; `field` is
    the first place.
    """

    code = "invalid_placeholder"

    def __init__(self, mistakes: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{place}: {said}" for place, said in mistakes))
        self.mistakes = mistakes
        self.field = mistakes[0][0]


class UnknownTask(InvalidSchedule):
    """A schedule names a task that the app has not registered."""


class UnknownLauncher(InvalidSchedule):
    """A schedule names a launcher that the app has not registered."""


class InvalidJob(PgbeatError):
    """A job, or what makes or limits jobs, is not well formed. The message lists every mistake."""


class InvalidTransition(PgbeatError):
    """A job, or a group, is in a state that doesn't allow what was asked for."""

    def __init__(
        self, job: object, state: str, verb: str, hint: str = "", *, noun: str = "job"
    ) -> None:
        super().__init__(f"{noun} {job} is {state} and can't be {verb}{hint and '; ' + hint}")
        self.job, self.state, self.verb = job, state, verb


class Forbidden(PgbeatError):
    """The actor has no permission for that."""


class InvalidToken(PgbeatError):
    """It isn't known who asks: no token or JWT, or one that is not, or no longer, good."""


class NotUnique(PgbeatError):
    """An unfinished job has the same unique key."""


class NoSlot(PgbeatError):
    """A lane had no free slot within the time given."""


class NotFound(PgbeatError):
    """There is nothing of that name."""


class AlreadyExists(PgbeatError):
    """There is such a schedule already."""


class Busy(PgbeatError):
    """The schedule is being changed by somebody else at this moment."""


class QueueLocked(PgbeatError):
    """A queue is exclusive to another process."""


class ConditionError(PgbeatError):
    """A launcher's condition or preparation failed."""


class ConditionTimeout(ConditionError):
    """A launcher's condition or preparation took longer than it may."""
