"""Tells errors of the server, which pass, from errors of the statement that met them."""

import time
from collections.abc import Callable
from typing import TypeVar

import psycopg
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from pgbeat.database import connections
from pgbeat.errors import BrokerUnavailable, Busy, ConfigError, Forbidden, InvalidInput, SchemaError

T = TypeVar("T")

#: Seconds for which `persist` tries again, and its longest pause.
_PATIENCE, _LONGEST_PAUSE = 20.0, 1.0
#: Seconds that a restart may take, in which a server gives several reasons.
_RESTART = 5.0
#: Classes and codes of SQLSTATE that say nothing of the statement: it may succeed a moment later,
#: or on another server. https://www.postgresql.org/docs/current/errcodes-appendix.html
_PASSING = {
    "08": "connection exception",
    "25006": "read-only transaction: the server is a standby, or is about to become one",
    "53": "insufficient resources: disk, memory, locks, connections",
    "57": "operator intervention: cancelled, shutting down, starting",
    "58": "system error: input and output",
    "XX": "internal error, corrupted data",
}
#: Those that say something of rows.
_OF_ROWS = {
    "21": "more rows than one",
    "22": "a value that can't be computed with",
    "23": "a value that a constraint refuses",
    "54": "a value that is too large, or nested too deeply",
}
#: The kind of an error that means a lost connection.
UNAVAILABLE = "database_unavailable"
#: Kinds of errors, as programs are told them, by SQLSTATE or its class.
_CODES = {
    "22": InvalidInput.code,
    "23": InvalidInput.code,
    # A lock timeout, a serialization failure, a deadlock.
    **dict.fromkeys(("55P03", "40001", "40P01"), Busy.code),
    "42501": Forbidden.code,
    "57014": "timeout",
    # There is no such schema, table, column or function: it is missing, or another version's.
    **dict.fromkeys(("3F000", "42P01", "42703", "42883"), SchemaError.code),
}


def code_of(error: BaseException) -> str:
    """Returns the kind of a database's error, for programs; an empty text if it has none."""
    state = connections.sqlstate(error)
    code = _CODES.get(state) or _CODES.get(state[:2], "")
    if not code and isinstance(getattr(error, "orig", None) or error, psycopg.DataError):
        return InvalidInput.code
    if not code and (isinstance(error, PoolTimeout) or connections.is_lost(error)):
        return UNAVAILABLE
    return code


class Outage:
    """What was logged of an outage: how it began, and later each other reason for which it lasts.

    A session that was ended doesn't say why no other one is let in: its role's password is another.
    """

    def __init__(self) -> None:
        #: When (`time.monotonic()`); `None` if there is none.
        self.began: float | None = None
        self._said: set[str] = set()

    def is_news(self, why: str, *, at_once: bool = False) -> bool:
        """Returns whether to log a reason: the first, and others once it has lasted, or at once."""
        now = time.monotonic()
        if self.began is None:
            self.began = now
        elif why in self._said or not (at_once or now - self.began > _RESTART):
            return False
        self._said.add(why)
        return True

    def end(self) -> None:
        """Forgets it: it is over."""
        self.began, self._said = None, set()


def is_passing(error: BaseException) -> bool:
    """Returns whether an error is the server's, and no task's failure: try again later.

    A statement that sets itself a `statement_timeout`, or runs in a transaction that it made
    read-only, must look at those codes (57014, 25006) first.
    """
    if connections.is_lost(error):
        return True
    if not isinstance(error, DBAPIError | psycopg.Error):
        return False
    code = connections.sqlstate(error)
    return code in _PASSING or code[:2] in _PASSING


def is_of_rows(error: BaseException) -> bool:
    """Returns whether an error comes from what rows hold: with the same rows it comes again.

    So it does if the database, the driver or our own code can't compute with a value.
    """
    if isinstance(error, DBAPIError | psycopg.Error):
        state = connections.sqlstate(error)
        cause = getattr(error, "orig", None) or error
        return state[:2] in _OF_ROWS or (not state and isinstance(cause, psycopg.DataError))
    others = SQLAlchemyError | BrokerUnavailable | ConfigError | SchemaError
    return isinstance(error, Exception) and not isinstance(error, others)


def persist(
    call: Callable[[], T],
    say: Callable[[BaseException], object],
    passes: Callable[[Exception], bool] = is_passing,
) -> T:
    """Calls a function again for some time if the server can't do it now, or is lost.

    `say` is called once with the error, if the second attempt fails like the first: that comes at
    once, as after an idle connection was lost. `passes` says which errors allow another attempt.
    """
    try:
        return call()
    except Exception as error:
        if not passes(error):
            raise
    give_up_at, pause = time.monotonic() + _PATIENCE, 0.0
    while True:
        try:
            return call()
        except Exception as error:
            if not passes(error) or time.monotonic() >= give_up_at:
                raise
            if not pause:
                say(error)
            time.sleep(pause)
            pause = min(pause + 0.1, _LONGEST_PAUSE)


def is_read_only(error: BaseException) -> bool:
    """Returns whether the server refuses to write: another one may be the primary now."""
    return connections.sqlstate(error) == "25006"
