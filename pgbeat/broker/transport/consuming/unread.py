"""Reads what arrives while no thread drives a session, as during a solo worker's task.

Unread notifications fill the connection. Then the server can send no more: over TCP it ends the
session within seconds, and others get its claims; over a Unix socket it keeps the notifications of
all sessions.
"""

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psycopg

from pgbeat.database.watched import readable

if TYPE_CHECKING:
    from pgbeat.broker.transport.consuming.session import Session

#: Seconds between two looks.
_INTERVAL = 1.0


def watch(session: "Session") -> None:
    """Starts a thread that reads what no other has read, until the session is lost."""
    threading.Thread(target=_watch, args=[session], name="pgbeat unread", daemon=True).start()


def _watch(session: "Session") -> None:
    with suppress(psycopg.OperationalError):
        while session.lost is None:
            time.sleep(_INTERVAL)
            while readable([session.prepared.fileno()], 0.0):
                session.read()
                session.wake()
