"""Asks the database which processes of a host it knows as alive.

A probe does so every few seconds, so this module needs psycopg alone.
"""

import socket
from collections.abc import Sequence
from typing import Any

import psycopg

from pgbeat.database import sql
from pgbeat.database.locks import held

#: The first half of the advisory lock that a worker holds.
LIFE = 1885823603
#: Whether a worker `w` is alive at this moment. (`missing_since` is what others have noted, if
#: there are any.)
ALIVE = f"(coalesce(w.alive_until > now(), false) OR w.id IN ({held(LIFE)}))"

_WORKERS = sql.load("known.sql", "workers", alive=ALIVE)
_BEATS = sql.load("known.sql", "beats")


def workers(raw: "psycopg.Connection[Any]", pids: Sequence[int]) -> list[int]:
    """Returns those of this host's processes that are living workers."""
    values = {"pids": list(pids), "host": socket.gethostname()}
    return [pid for (pid,) in raw.execute(_WORKERS, values)]


def beats(raw: "psycopg.Connection[Any]", pids: Sequence[int]) -> dict[int, bool]:
    """Returns those of this host's processes that are beats, and whether each leads."""
    names = {session_name(pid): pid for pid in pids}
    rows = raw.execute(_BEATS, {"names": list(names)})
    return {names[name]: leads for name, leads in rows}


def session_name(pid: int) -> str:
    """Returns the name of a beat's session, as Postgres cuts it."""
    return f"pgbeat beat {socket.gethostname()}:{pid}"[:63]
