"""Fetches prices from an HTTP service, which sometimes fails."""

import json
import os
from datetime import date
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert as upsert

from tasks import app
from tasks.store import begin, prices


class PricesUnavailable(Exception):
    """The service didn't return prices."""


@app.task
def fetch_prices(area: str) -> dict[str, Any]:
    """Fetches and stores an area's hourly prices of today (UTC). Returns their number and mean.

    The service is `$PGBEAT_PRICES_URL` (by default `http://127.0.0.1:8737`, where `python -m
    tasks.price_server` listens). Raises `PricesUnavailable`.
    """
    with begin() as connection:
        today = connection.execute(select(func.timezone("UTC", func.now()))).scalar_one().date()
    rows = [
        {"area": area, "starts_at": hour["starts_at"], "eur_per_mwh": hour["eur_per_mwh"]}
        for hour in _ask(area, today)["prices"]
    ]
    if not rows:
        raise PricesUnavailable(f"{area}: no prices for {today}")
    new = upsert(prices).values(rows)
    new = new.on_conflict_do_update(
        index_elements=[prices.c.area, prices.c.starts_at],
        set_={"eur_per_mwh": new.excluded.eur_per_mwh, "fetched_at": func.now()},
    )
    with begin() as connection:
        connection.execute(new)
    mean = sum(row["eur_per_mwh"] for row in rows) / len(rows)
    return {"area": area, "stored": len(rows), "mean": round(mean, 2)}


def _ask(area: str, day: date) -> dict[str, Any]:
    base = os.environ.get("PGBEAT_PRICES_URL") or "http://127.0.0.1:8737"
    if not base.startswith(("http://", "https://")):
        raise PricesUnavailable(f"PGBEAT_PRICES_URL is {base!r}; it must be an http URL")
    query = urlencode({"area": area, "day": day})
    try:
        with urlopen(f"{base}/prices?{query}", timeout=5) as answer:  # noqa: S310 - checked above
            listed: dict[str, Any] = json.load(answer)
    except HTTPError as error:
        with error:
            raise PricesUnavailable(f"{area}: {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:
        raise PricesUnavailable(f"{area}: {getattr(error, 'reason', error)}") from None
    return listed
