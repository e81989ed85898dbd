"""Tells errors of the server, which pass, from errors of the statement that met them."""

import psycopg
from sqlalchemy.exc import DBAPIError

from pgbeat.database import connections

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


def is_read_only(error: BaseException) -> bool:
    """Returns whether the server refuses to write: another one may be the primary now."""
    return connections.sqlstate(error) == "25006"
