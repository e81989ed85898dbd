"""Finds the transaction that a thread's messages must join: a block's, or a framework's."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol

from sqlalchemy import Connection


class BlockTarget(Protocol):
    """Where the messages of a block go."""

    def channel_for(self, broker: Any) -> Any:
        """Returns the channel for messages to `broker`; `None` if the block has another broker."""


class FrameworkTransaction(BlockTarget, Protocol):
    """A transaction that a framework has opened, such as Django in `atomic()`."""

    def connection(self) -> Connection:
        """Returns the connection, in the transaction."""

    def savepoint(self) -> AbstractContextManager[None]:
        """Returns a block that takes back what it wrote if it raises."""


#: What frameworks' integrations add: each returns the transaction that is open where it is called.
finders: list[Callable[[], FrameworkTransaction | None]] = []


class TransactionBlock:
    """One block, of the thread, greenlet and asyncio task that opened it."""

    __slots__ = ("_owner", "is_open", "target")

    def __init__(self, target: BlockTarget) -> None:
        self.target = target
        self.is_open = True
        self._owner = _whereabouts()

    def is_here(self) -> bool:
        """Returns whether the caller is in the block itself.

        An asyncio task, greenlet or thread started in it has a copy of its context, but is not.
        """
        return self.is_open and self._owner == _whereabouts()


_blocks: ContextVar[tuple[TransactionBlock, ...]] = ContextVar("pgbeat_blocks", default=())


def _whereabouts() -> tuple[int, ...]:
    greenlets = sys.modules.get("greenlet")
    greenlet: Any = greenlets.getcurrent() if greenlets is not None else None
    # SQLAlchemy calls the synchronous side of asyncio sessions in a greenlet that the task awaits.
    while type(greenlet).__module__.partition(".")[0] == "sqlalchemy":
        greenlet = greenlet.parent
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        task = None
    return os.getpid(), threading.get_ident(), id(greenlet), id(task)


def enter(target: BlockTarget) -> TransactionBlock:
    """Opens a block inside those that are open."""
    block = TransactionBlock(target)
    _blocks.set((*_blocks.get(), block))
    return block


def leave(block: TransactionBlock) -> None:
    """Closes a block, also in all copies of its context."""
    block.is_open = False
    _blocks.set(tuple(other for other in _blocks.get() if other.is_open))


def channel_for(broker: Any, *, is_chosen: bool = False) -> Any:
    """Returns the channel of the innermost block for messages to `broker`, if there is one.

    Else that of a framework's transaction, unless the caller chose the connection to publish over.
    """
    for block in reversed(_blocks.get()):
        if block.is_here() and (channel := block.target.channel_for(broker)) is not None:
            return channel
    if finders and not is_chosen:
        for transaction in open_transactions():
            if (channel := transaction.channel_for(broker)) is not None:
                return channel
    return None


def open_transactions() -> list[FrameworkTransaction]:
    """Returns the transactions that frameworks have open here."""
    return [transaction for find in finders if (transaction := find()) is not None]
