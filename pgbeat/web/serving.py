"""Serves the web app on a socket, in this process or in several that share it."""

import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from pgbeat.web.slow_clients import PunctualProtocol

logger = logging.getLogger("pgbeat.web")

#: Seconds that open requests have at the end.
_GRACE = 3
#: Seconds before a process that ended by itself is replaced, and that all have to end.
_PAUSE, _END = 1.0, 10.0


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket; port 0 is any free one. Raises `OSError`."""
    [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(2048)
    except BaseException:
        sock.close()
        raise
    sock.set_inheritable(True)
    return sock


def serve(
    make: Callable[[], FastAPI],
    sock: socket.socket,
    *,
    workers: int = 1,
    root_path: str = "",
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serves until SIGINT or SIGTERM; then answers open requests, and ends event streams.

    Each process calls `make`. `ready` is called once, before the first request is accepted.
    """
    with _ended_by_signals() as stop:
        if workers == 1:
            app = make()
            ready()
            _run(app, sock, root_path, stop)
        else:
            ready()
            _Fleet(lambda: _run(make(), sock, root_path, stop)).run(workers)


class _Stop:
    """What SIGINT and SIGTERM do: they raise `SystemExit`, or are noted until the server looks."""

    def __init__(self) -> None:
        self.came = self.is_noted = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        if not self.is_noted:
            raise SystemExit(0)


def _run(app: FastAPI, sock: socket.socket, root_path: str, stop: _Stop) -> None:
    config = uvicorn.Config(
        app,
        http=PunctualProtocol,
        root_path=root_path,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
        h11_max_incomplete_event_size=64 * 1024,
    )
    # The collector calls finalizers, and Python drops what is raised in them.
    stop.is_noted = True
    # Full collections need not look at what the program has loaded: they took a tenth of a second
    # each, in one of some twenty overviews.
    gc.collect()
    gc.freeze()
    _Server(config, app, stop).run(sockets=[sock])


class _Server(uvicorn.Server):
    """Ends event streams on shutdown, instead of waiting for them."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, stop: _Stop) -> None:
        super().__init__(config)
        self._app, self._stop = app, stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts up, unless a signal came before this server handled them."""
        self.should_exit = self.should_exit or self._stop.came
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shuts down."""
        watcher = getattr(self._app.state, "pgbeat_watch", None)
        if watcher is not None:
            watcher.close()
        await super().shutdown(sockets)


@contextmanager
def _ended_by_signals() -> Iterator[_Stop]:
    """Ends the block without an error on SIGINT and SIGTERM."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except SystemExit as error:
        if error.code not in (0, None):
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Fleet:
    """Processes that do the same; one that ends by itself is replaced."""

    def __init__(self, do: Callable[[], None]) -> None:
        self._do = do
        self._running: set[int] = set()

    def run(self, number: int) -> None:
        """Runs `number` processes until a signal ends this one."""
        parent = os.getpid()
        try:
            for _ in range(number):
                self._start()
            while True:
                process, status = os.wait()
                self._running.discard(process)
                logger.error(
                    "Process %d ended by itself (%d); starting another",
                    process,
                    os.waitstatus_to_exitcode(status),
                )
                time.sleep(_PAUSE)
                self._start()
        finally:
            if os.getpid() == parent:
                self._stop()

    def _start(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process:
            self._running.add(process)
            return
        status = 1
        try:
            self._do()
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BaseException:
            logger.exception("A process of the web app failed")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _stop(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        deadline = time.monotonic() + _END
        self._signal(signal.SIGTERM)
        while self._running:
            process, _ = os.waitpid(-1, os.WNOHANG)
            self._running.discard(process)
            if not process:
                if time.monotonic() > deadline:
                    self._signal(signal.SIGKILL)
                    deadline += _END
                time.sleep(0.02)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._running:
            os.kill(process, number)
