"""Makes requests to receivers of webhooks, many at once, in one thread."""

import asyncio
import threading
from collections.abc import Callable, Sequence

from pgbeat.webhooks.http import Client, Reply
from pgbeat.webhooks.outbox import DeliveryAttempt, Outcome


class Sender:
    """Makes the attempts that it is given, in an event loop in its own thread."""

    def __init__(self, report: Callable[[Outcome], None], *, private: bool) -> None:
        """Calls `report` with each outcome, in its thread."""
        self._report, self._private = report, private
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()
        self._requests: set[asyncio.Task[None]] = set()

    def send(self, attempts: Sequence[DeliveryAttempt]) -> None:
        """Begins requests, and returns at once."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(
                target=self._run, args=(self._loop,), name="pgbeat webhook", daemon=True
            ).start()
        self._loop.call_soon_threadsafe(self._begin, attempts)

    def stop(self) -> None:
        """Ends the thread. No request must be under way."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._client = Client(private=self._private)
        try:
            await self._stopped.wait()
        finally:
            self._client.close()

    def _begin(self, attempts: Sequence[DeliveryAttempt]) -> None:
        for attempt in attempts:
            request = asyncio.create_task(self._request(attempt))
            self._requests.add(request)
            request.add_done_callback(self._requests.discard)

    async def _request(self, attempt: DeliveryAttempt) -> None:
        try:
            reply = await self._client.request(*attempt.request())
        except Exception as error:  # from a secret or a URL that was written by plain SQL
            reply = Reply(None, ascii(f"{type(error).__name__}: {error}")[1:-1][:300], 0.0)
        self._report(Outcome(attempt, reply))
