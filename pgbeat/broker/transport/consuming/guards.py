"""Holds a consuming session's lock for a block, and ends the session if the block fails."""

import os
from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy.exc import DBAPIError

from pgbeat.database import connections

if TYPE_CHECKING:
    from pgbeat.broker.transport.consuming.session import Session


class Guarded:
    """Holds the lock. Any error ends the session, since it may have missed an answer.

    Raises `psycopg.OperationalError` for errors of the database, on which kombu reconnects.
    """

    def __init__(self, session: "Session") -> None:
        self.session = session

    def __enter__(self) -> None:
        if self.session.pid != os.getpid():
            raise psycopg.OperationalError("the consumer's session belongs to the parent process")
        self.session.lock.acquire()
        if self.session.lost is not None:
            self.session.lock.release()
            raise psycopg.OperationalError(
                f"the consumer's session is lost: {connections.first_line(self.session.lost)}"
            )

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            if error is None:
                if self.session.hear():
                    self.session.wake_others()
                return
            self.session.fail(error)
        finally:
            self.session.lock.release()
        if isinstance(error, psycopg.Error | DBAPIError) and not isinstance(
            error, connections.LOST
        ):
            raise psycopg.OperationalError(
                f"the consumer's session ended after an error: {connections.first_line(error)}"
            ) from error


class Alone(Guarded):
    """Holds the lock with no statement under way."""

    def __enter__(self) -> None:
        super().__enter__()
        try:
            self.session.finish()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
