"""Blocks in which a thread's messages go into a transaction of the caller's."""

import asyncio
import os
import sys
import threading
from contextvars import ContextVar
from typing import Any, Protocol


class BlockTarget(Protocol):
    """Where the messages of a block go."""

    def channel_for(self, broker: Any) -> Any:
        """Returns the channel that stands in for those of `broker`; `None` if the block is about
        another broker."""


class Block:
    """One block, of the thread, greenlet and asyncio task that opened it."""

    __slots__ = ("_owner", "is_open", "target")

    def __init__(self, target: BlockTarget) -> None:
        self.target = target
        self.is_open = True
        self._owner = _whereabouts()

    def is_here(self) -> bool:
        """Returns whether the caller is inside of the block: what was started in it (a task of
        asyncio's, a greenlet, `to_thread`) has a copy of its context, but is not."""
        return self.is_open and self._owner == _whereabouts()


_blocks: ContextVar[tuple[Block, ...]] = ContextVar("pgbeat_blocks", default=())


def _whereabouts() -> tuple[int, ...]:
    greenlets = sys.modules.get("greenlet")
    greenlet = greenlets.getcurrent() if greenlets is not None else None
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        task = None
    return os.getpid(), threading.get_ident(), id(greenlet), id(task)


def enter(target: BlockTarget) -> Block:
    """Opens a block, inside of those that are open."""
    block = Block(target)
    _blocks.set((*_blocks.get(), block))
    return block


def leave(block: Block) -> None:
    """Closes a block, wherever its context was copied to."""
    block.is_open = False
    _blocks.set(tuple(each for each in _blocks.get() if each.is_open))


def channel_for(broker: Any) -> Any:
    """Returns the channel that takes what is published to `broker` here and now: that of the
    innermost block about it, or `None`."""
    blocks = _blocks.get()
    if not blocks:
        return None
    for block in reversed(blocks):
        if block.is_here():
            channel = block.target.channel_for(broker)
            if channel is not None:
                return channel
    return None
