"""Finds the broker's tables in pgbeat's database."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.engine import URL

from pgbeat.broker.messages import BrokerTables
from pgbeat.config import is_own_broker, place
from pgbeat.errors import NotFound


def expected_tables(url: URL, conf: Mapping[str, Any] | None) -> BrokerTables | None:
    """Returns the broker's tables, by the names that the app's configuration gives them.

    They may not exist yet. Without an app they have their usual names. `None` if the app's broker
    is not the database of that URL.
    """
    if conf is not None and not is_own_broker(conf, url):
        return None
    return BrokerTables.named({} if conf is None else conf.get("broker_transport_options") or {})


def own_tables(connection: Connection, url: URL, conf: Mapping[str, Any] | None) -> BrokerTables:
    """Returns the tables of `expected_tables`. Raises `NotFound` if they don't exist."""
    tables = expected_tables(url, conf)
    if tables is None:
        raise NotFound(f"the app's broker is not database {place(url)}: its queues are not here")
    if tables.exist(connection):
        return tables
    hint = " yet; `pgbeat -A APP migrate` creates them"
    if conf is None:
        hint = (
            ": the broker is elsewhere, its tables have other names (give the app with -A APP), or "
            "it was never used (`pgbeat -A APP migrate` creates them)"
        )
    raise NotFound(f"the broker's tables are not in database {place(url)}{hint}")
