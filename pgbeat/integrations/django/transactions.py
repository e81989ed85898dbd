"""Publishes in the transaction of `atomic()`, over Django's own connection.

What is sent there exists if and only if the block commits; a savepoint that is rolled back takes
its messages along. There is nothing to do at the commit, so a process killed then loses nothing.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from celery import Celery, current_app
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.transaction import atomic, mark_for_rollback_on_error
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from pgbeat.broker.publishing.transaction import BlockChannel, InTransaction, Opened, is_of
from pgbeat.broker.transport import transaction_blocks
from pgbeat.database import guests, identity
from pgbeat.errors import CannotPublish
from pgbeat.integrations.django import databases


def connect() -> None:
    """Makes messages that are published inside `atomic()` join its transaction."""
    if find not in transaction_blocks.finders:
        transaction_blocks.finders.append(find)


def find() -> "AtomicTransaction | None":
    """Returns this thread's open transaction in pgbeat's database, if there is one.

    Raises Django's `TransactionManagementError` in one that can only be rolled back.
    """
    try:
        wrapper = connections[databases.alias()]
    except ImproperlyConfigured:  # no such entry, or no driver for it
        return None
    if wrapper.vendor != "postgresql" or not _is_open(wrapper):
        return None
    wrapper.validate_no_broken_transaction()
    wrapper.ensure_connection()
    raw = wrapper.connection
    if not isinstance(raw, psycopg.Connection):
        raise CannotPublish(
            f"tasks can't be sent in a transaction of {type(raw).__module__}: pgbeat writes them "
            "over Django's connection, which needs psycopg 3; or use delay_on_commit()"
        )
    return AtomicTransaction(wrapper.alias, raw)


def _is_open(wrapper: Any) -> bool:
    if wrapper.in_atomic_block:
        return True
    if wrapper.connection is None:  # where AUTOCOMMIT is off, its first statement will begin one
        return not wrapper.settings_dict["AUTOCOMMIT"]
    return not wrapper.autocommit


#: By Django's connections, which live longer than transactions.
_known: "WeakKeyDictionary[psycopg.Connection[Any], _Joined]" = WeakKeyDictionary()


class AtomicTransaction:
    """A transaction of Django's."""

    def __init__(self, alias: str, raw: "psycopg.Connection[Any]") -> None:
        self._alias, self._raw = alias, raw

    def connection(self) -> Connection:
        """Returns a connection of pgbeat's in the transaction."""
        with _failing(self._alias):
            return guests.connection(self._raw)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Opens a savepoint, as `atomic()` does, and raises Django's errors."""
        with _failing(self._alias, is_doomed=False), atomic(self._alias):
            yield

    def channel_for(self, broker: Any) -> BlockChannel | None:
        """Returns the channel for messages to `broker`, if its database is the transaction's."""
        session, app = self.connection(), current_app._get_current_object()
        with _failing(self._alias):
            database = identity.cached(session)
        if not is_of(broker, app, database):
            return None
        with _failing(self._alias):
            joined = _known.get(self._raw)
            if joined is None or joined.session is not session:
                joined = _known[self._raw] = _Joined(session, app, self._alias)
            return joined.channel_for(broker)


class _Joined(InTransaction):
    """Publishes over a connection of Django's, in one transaction after the other."""

    def __init__(self, session: Connection, app: Celery, alias: str) -> None:
        self.session, self.alias = session, alias
        super().__init__(session, app)

    def require_broker(self, session: Opened) -> None:
        """Requires nothing: messages to brokers elsewhere are sent at once."""

    def make_channel(self) -> BlockChannel:
        """Returns a channel whose errors are Django's."""
        return _AtomicChannel(self.transport)


class _AtomicChannel(BlockChannel):
    def failing(self) -> AbstractContextManager[None]:
        """Raises Django's errors, which kombu doesn't know and so doesn't retry."""
        return _failing(self.connection.client.alias)


@contextmanager
def _failing(alias: str, *, is_doomed: bool = True) -> Iterator[None]:
    """Raises the database's errors as Django's, which then only rolls back if `is_doomed`."""
    try:
        yield
    except DBAPIError as error:
        with connections[alias].wrap_database_errors, ExitStack() as stack:
            if is_doomed:
                stack.enter_context(mark_for_rollback_on_error(alias))
            raise error.orig or error from error
