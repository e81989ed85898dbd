"""Flower's Broker page for `pgbeat+postgresql://`: `import pgbeat.flower` in flowerconfig.py.

Everything else in Flower works as it is.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from flower.utils.broker import Broker, BrokerBase

from pgbeat import db, queues
from pgbeat.config import postgres_url
from pgbeat.messages import BrokerTables

#: Schemes of the broker's URL that are pgbeat's.
_PREFIX = "pgbeat+"
_stock = Broker.__new__


class PostgresBroker(BrokerBase):
    """The queues, read from the broker's tables."""

    def __init__(
        self, broker_url: str, *args: Any, broker_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        options = broker_options or {}
        self._tables = BrokerTables.named(options)
        self._engine = db.engine(
            postgres_url(broker_url), "pgbeat flower", options.get("connect_args")
        )

    async def queues(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """The numbers of the queues of these names, as Flower shows them."""
        return await asyncio.get_running_loop().run_in_executor(None, self._read, set(names))

    def _read(self, names: set[str]) -> list[dict[str, Any]]:
        with self._engine.connect() as connection:
            found = queues.all_queues(connection, self._tables)
        return [
            {
                "name": queue.name,
                "messages": queue.waiting + queue.claimed,
                "messages_ready": queue.waiting,
                "messages_unacknowledged": queue.claimed,
                "consumers": queue.consumers,
            }
            for queue in found
            if queue.name in names
        ]


def _broker(cls: type, broker_url: str, *args: Any, **kwargs: Any) -> Any:
    if broker_url.startswith(_PREFIX):
        return PostgresBroker(broker_url, *args, **kwargs)
    return _stock(cls, broker_url, *args, **kwargs)


Broker.__new__ = _broker
