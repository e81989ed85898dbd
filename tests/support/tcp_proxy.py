"""Forwards connections to the server, holds them, and cuts them so that one side hears of it."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from psycopg.conninfo import conninfo_to_dict

from pgbeat.config import postgres_url

#: The end of a server's answer, in a transaction and in none.
_IN_TRANSACTION, _IDLE = b"Z\0\0\0\x05T", b"Z\0\0\0\x05I"


class Proxy:
    """Forwards connections to a database (DSN), each way by a thread."""

    def __init__(self, dsn: str) -> None:
        self._to = conninfo_to_dict(dsn)
        self._listener = socket.create_server(("127.0.0.1", 0))
        #: The ends of the workers, and those of the server.
        self._near: list[socket.socket] = []
        self._far: list[socket.socket] = []
        self._is_cut, self._accepts = False, True
        self._flows = threading.Event()
        self._flows.set()
        #: What a client is to say before the server's answer is lost; and what is done then.
        self._marker: bytes | None = None
        self._meanwhile: Callable[[], object] = lambda: None
        #: The ends of servers whose next answer is lost.
        self._doomed: set[socket.socket] = set()
        #: How many answers were lost.
        self.lost = 0
        #: How many connections were made.
        self.accepted = 0
        query = {"sslmode": "disable"}
        url = postgres_url(dsn).set(drivername="postgresql", host="127.0.0.1", query=query)
        url = url.set(port=self._listener.getsockname()[1])
        #: The database by this proxy.
        self.dsn = url.render_as_string(hide_password=False)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.accepted += 1
                self._near.append(near)
                if self._accepts:
                    try:
                        far = self._connect()
                    except OSError:  # the server is gone
                        near.close()
                        continue
                    self._far.append(far)
                    for ends in ((near, far), (far, near)):
                        threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _connect(self) -> socket.socket:
        host, port = str(self._to.get("host") or "localhost"), int(self._to.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        far = socket.socket(socket.AF_UNIX)
        far.connect(f"{host}/.s.PGSQL.{port}")
        return far

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            answer = b""
            while data := one.recv(65536):
                self._flows.wait()
                if self._marker is not None and self._marker in data:
                    self._marker = None
                    self._doomed.add(other)
                if one not in self._doomed:
                    other.sendall(data)
                elif (answer := answer + data).endswith(
                    _IN_TRANSACTION
                ):  # it prepared the statement
                    other.sendall(answer)
                    answer = b""
                elif answer.endswith(_IDLE):
                    self._meanwhile()
                    self.lost += 1
                    break
        self._flows.wait()
        if not self._is_cut:
            self._end([one, other])

    def lose_answer(self, marker: bytes, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Cuts the next connection over which a client says this, after the server has done it.

        The client doesn't get the answer, and hears of the cut once `meanwhile` has been called.
        """
        self._meanwhile, self._marker = meanwhile, marker

    def hold(self) -> None:
        """Lets nothing through until `release`: then what was sent meanwhile, and ends, arrive."""
        self._flows.clear()

    def release(self) -> None:
        """Ends a hold."""
        self._flows.set()

    def lead_to(self, dsn: str) -> None:
        """Leads new connections to another server."""
        self._to = conninfo_to_dict(dsn)

    def cut(self) -> None:
        """Lets nothing through, and closes no client's connection.

        The server drops the sessions, as it would by keepalives.
        """
        self._is_cut, self._accepts = True, False
        self._end(self._far)

    def reset(self) -> None:
        """Closes the clients' connections; the server hears nothing, and keeps their sessions."""
        self._is_cut = True
        self._end(self._near)

    def replace(self) -> None:
        """Lets new connections through, as to another server that has taken over the address.

        Clients that waited go on waiting.
        """
        self._accepts = True

    def mend(self) -> None:
        """Lets everything through again; clients that waited lose their connections."""
        self._is_cut, self._accepts = False, True
        self._end(self._near)

    def refuse(self) -> None:
        """Refuses new connections from now on; those that are open stay."""
        self._end([self._listener])

    def close(self) -> None:
        self._end([self._listener, *self._near, *self._far])

    @staticmethod
    def _end(ends: list[socket.socket]) -> None:
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
