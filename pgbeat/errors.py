"""Every error that pgbeat raises on purpose.

    PgbeatError
    ├── ConfigError           settings or the DSN are wrong; lists every mistake at once
    ├── SchemaError           the database's schema is missing, older or newer than this code
    ├── InvalidSchedule       a row names something that isn't there, or isn't well formed
    │   ├── InvalidTimetable  cron expression, interval or time zone
    │   ├── InvalidCalendar   a calendar's definition; lists every mistake at once
    │   ├── UnknownTask       a task that the app has not registered
    │   └── UnknownLauncher   a launcher that the app has not registered
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


class UnknownTask(InvalidSchedule):
    """A schedule names a task that the app has not registered."""


class UnknownLauncher(InvalidSchedule):
    """A schedule names a launcher that the app has not registered."""


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
