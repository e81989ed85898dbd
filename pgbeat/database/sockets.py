"""Looks at the sockets of connections, without asking the server."""

import select
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus


def readable(files: Sequence[int], seconds: float) -> list[int]:
    """Waits up to so many seconds, and returns the file descriptors that can be read.

    `select.select`, which takes none above 1023, is used only under eventlet, which has no other.
    """
    if not hasattr(select, "poll"):
        return select.select(files, [], [], seconds)[0]
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return [file for file, _ in poll.poll(seconds * 1000)]


def is_alive(connection: "psycopg.Connection[Any]") -> bool:
    """Returns whether an idle connection is good, as far as known without asking the server."""
    pgconn = connection.pgconn
    if connection.closed or pgconn.transaction_status == TransactionStatus.UNKNOWN:
        return False
    if not readable([pgconn.socket], 0):
        return True
    try:
        # First come the last words of a server that ends, then the end.
        pgconn.consume_input()
        pgconn.consume_input()
    except psycopg.OperationalError:
        return False
    return True
