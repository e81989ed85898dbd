"""Connections that a process keeps for itself."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from pgbeat.config import postgres_url
from pgbeat.database import connections
from pgbeat.database.kept import kept
from tests.support.processes import until

_PID = text("SELECT pg_backend_pid()")
_SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'kept test' ORDER BY 1"


def test_a_connection_is_used_again_also_after_an_error(database: str) -> None:
    url = postgres_url(database)
    with kept(url, "kept test") as connection:
        pid = connection.scalar(_PID)
    with pytest.raises(ProgrammingError), kept(url, "kept test") as connection:
        connection.execute(text("SELECT nothing"))
    with kept(url, "kept test") as connection:
        assert connection.scalar(_PID) == pid
        assert connections.is_autocommit(connection)


def test_one_that_is_in_a_transaction_is_given_up(
    database: str, sql: Callable[..., list[tuple[Any, ...]]]
) -> None:
    url = postgres_url(database)
    with kept(url, "kept test") as connection:
        connection.execute(text("CREATE TABLE left_open (n integer)"))
        connection.execute(text("BEGIN"))
        connection.execute(text("INSERT INTO left_open VALUES (1)"))
    with kept(url, "kept test") as connection:
        assert connection.scalar(text("SELECT count(*) FROM left_open")) == 0
    until(lambda: len(sql(_SESSIONS)) == 1)


def test_one_whose_server_is_gone_is_replaced(
    database: str, sql: Callable[..., list[tuple[Any, ...]]]
) -> None:
    url = postgres_url(database)
    with kept(url, "kept test") as connection:
        pid = connection.scalar(_PID)
    sql("SELECT pg_terminate_backend(%s, 5000)", pid)
    with kept(url, "kept test") as connection:
        assert connection.scalar(_PID) != pid


def test_each_has_the_parameters_that_are_asked_for(database: str) -> None:
    url, name = postgres_url(database), text("SELECT current_setting('application_name')")
    for arguments in ({}, {"application_name": "another"}, {}):
        with kept(url, "kept test", arguments) as connection:
            assert connection.scalar(name) == arguments.get("application_name", "kept test")


def test_few_stay_open(database: str, sql: Callable[..., list[tuple[Any, ...]]]) -> None:
    url = postgres_url(database)
    with ExitStack() as stack:
        opened = [stack.enter_context(kept(url, "kept test")) for _ in range(5)]
        assert len({connection.scalar(_PID) for connection in opened}) == 5
    until(lambda: len(sql(_SESSIONS)) == 2)


def test_a_child_leaves_its_parents_alone(database: str) -> None:
    url = postgres_url(database)
    with kept(url, "kept test") as connection:
        pid = connection.scalar(_PID)
    child = os.fork()
    if not child:
        status = 1
        try:
            with kept(url, "kept test") as connection:
                status = int(connection.scalar(_PID) == pid)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    with kept(url, "kept test") as connection:
        assert connection.scalar(_PID) == pid
