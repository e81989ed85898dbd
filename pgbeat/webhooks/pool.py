"""Connects to receivers of webhooks, by default only at public addresses, and keeps connections.

The name in a URL is resolved for each connection, and all its addresses are checked. The connection
goes to one of these, even if the name has other addresses a moment later, and stays with it.
"""

import asyncio
import os
import socket
import ssl
import threading
from collections import defaultdict
from contextlib import suppress
from functools import lru_cache
from typing import Any

from pgbeat.webhooks.addresses import refusal
from pgbeat.webhooks.connection import Connection, Origin

#: The end of messages that say where webhooks may not go.
UNLESS = "; the setting pgbeat_webhook_private allows it"
# Seconds for which a connection is kept without a request, and how many are, of all receivers.
_IDLE, _MOST = 15.0, 256
# Seconds after which a connection takes no more requests: the name may have other addresses.
_LIFETIME = 60.0


class Refused(Exception):
    """The request is not made, for the reason in the message."""


# The addresses of a name, as `socket.getaddrinfo` returns them.
_Addresses = list[tuple[Any, ...]]


class Pool:
    """Makes connections, and keeps those that can be used again. For one event loop."""

    def __init__(self, *, private: bool) -> None:
        """Allows this machine and private networks if `private`."""
        self._private = private
        self._kept: defaultdict[Origin, list[Connection]] = defaultdict(list)
        self._count = 0
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._lookups: dict[Origin, asyncio.Future[_Addresses | Refused]] = {}

    def take(self, origin: Origin) -> Connection | None:
        """Returns a connection that was kept, if there is one that can be used."""
        now = asyncio.get_running_loop().time()
        kept = self._kept.get(origin, [])
        while kept:
            connection = kept.pop()
            self._count -= 1
            if _is_usable(connection, now):
                return connection
            connection.close()
        return None

    async def connect(self, origin: Origin, deadline: float) -> Connection:
        """Makes a connection before the deadline, by the loop's clock.

        Raises `Refused` if it must not be made, and `OSError`.
        """
        loop = asyncio.get_running_loop()
        addresses = await self._resolve(origin)
        if isinstance(addresses, Refused):
            raise addresses
        context = _context() if origin.is_secure else None
        connected = await _first_to_answer(addresses, deadline)
        _, connection = await loop.create_connection(
            lambda: Connection(origin, loop.time()),
            sock=connected,
            ssl=context,
            server_hostname=origin.host if origin.is_secure else None,
        )
        return connection

    def keep(self, connection: Connection) -> None:
        """Keeps a connection whose response was read, or closes it if too many are kept."""
        loop = asyncio.get_running_loop()
        connection.used_at = loop.time()
        if self._count >= _MOST or not _is_usable(connection, loop.time()):
            connection.close()
            return
        self._kept[connection.origin].append(connection)
        self._count += 1
        if self._sweep_timer is None:
            self._sweep_timer = loop.call_later(_IDLE, self._sweep)

    def _sweep(self) -> None:
        """Closes connections that wait for long, and forgets receivers that have none."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for origin, connections in list(self._kept.items()):
            usable = [candidate for candidate in connections if _is_usable(candidate, now)]
            for connection in set(connections).difference(usable):
                connection.close()
                self._count -= 1
            self._kept[origin] = usable
            if not usable:
                del self._kept[origin]
        self._sweep_timer = loop.call_later(_IDLE, self._sweep) if self._kept else None

    def close(self) -> None:
        """Closes the connections that are kept."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for connections in self._kept.values():
            for connection in connections:
                connection.close()
        self._kept.clear()

    async def _resolve(self, origin: Origin) -> _Addresses | Refused:
        """Resolves and checks a name, once for all that ask at the same time."""
        lookup = self._lookups.get(origin)
        if lookup is None:
            # In its own thread: a name server that doesn't answer delays no other name.
            lookup = asyncio.get_running_loop().create_future()
            args = (asyncio.get_running_loop(), origin, lookup)
            threading.Thread(
                target=self._look_up, args=args, name="pgbeat webhook name", daemon=True
            ).start()
            self._lookups[origin] = lookup
        return await asyncio.shield(lookup)

    def _look_up(
        self,
        loop: asyncio.AbstractEventLoop,
        origin: Origin,
        lookup: "asyncio.Future[_Addresses | Refused]",
    ) -> None:
        """Resolves and checks a name, in a thread."""
        addresses: _Addresses | Refused
        try:
            addresses = _addresses(origin.host, origin.port, private=self._private)
        except Refused as refused:
            addresses = refused
        except Exception as error:  # all waits must learn of it
            addresses = Refused(f"{origin.host} can't be resolved: {error}")
        with suppress(RuntimeError):  # the loop is closed, and no wait left
            loop.call_soon_threadsafe(self._settle, origin, lookup, addresses)

    def _settle(
        self,
        origin: Origin,
        lookup: "asyncio.Future[_Addresses | Refused]",
        addresses: _Addresses | Refused,
    ) -> None:
        del self._lookups[origin]
        lookup.set_result(addresses)


def _is_usable(connection: Connection, now: float) -> bool:
    is_young = now - connection.made_at < _LIFETIME and now - connection.used_at < _IDLE
    return connection.is_clean and is_young


def _addresses(host: str, port: int, *, private: bool) -> _Addresses:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Refused(f"{host} can't be resolved: {reason}") from None
    for *_, address in addresses:
        problem = None if private else refusal(str(address[0]))
        if problem is not None:
            raise Refused(f"{host} is {address[0]}, {problem}: not sent{UNLESS}")
    return list(addresses)


async def _first_to_answer(addresses: _Addresses, deadline: float) -> socket.socket:
    """Connects to the first address that answers. Each gets its share of the time."""
    loop = asyncio.get_running_loop()
    error: OSError = OSError("it has no address")
    for position, (family, kind, protocol, _, address) in enumerate(addresses):
        new = socket.socket(family, kind, protocol)
        new.setblocking(False)
        share = (deadline - loop.time()) / (len(addresses) - position)
        try:
            async with asyncio.timeout(share):
                await loop.sock_connect(new, address)
            return new
        except TimeoutError as late:
            new.close()
            error = late
        except OSError as wrong:  # asyncio's own message has the address in it
            new.close()
            error = type(wrong)(wrong.errno, os.strerror(wrong.errno or 0))
        except BaseException:
            new.close()
            raise
    raise error


@lru_cache(maxsize=1)
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()
