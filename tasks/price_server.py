"""A small HTTP service with made-up prices, for `tasks.prices`: `python -m tasks.price_server`.

`GET /prices?area=DK1&day=2025-10-29` returns the day's hourly prices as JSON. Every n-th request
fails with 503.
"""

import argparse
import json
from contextlib import suppress
from datetime import UTC, date, datetime, time
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any
from urllib.parse import parse_qsl, urlsplit

#: Mean price of each area, in EUR per MWh.
AREAS = {"DK1": 71, "DK2": 74, "NO1": 52, "SE3": 47}
EXAMPLE = "/prices?area=DK1&day=2025-10-29"


class PriceServer(ThreadingHTTPServer):
    """Serves prices; every `fail_every`-th request fails (0: none does)."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], fail_every: int = 0) -> None:
        super().__init__(address, Handler)
        self.fail_every = fail_every
        self.requests = count(1)


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: PriceServer

    def do_GET(self) -> None:
        """Sends prices, or an error."""
        number = next(self.server.requests)
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        if url.path != "/prices":
            self.answer(HTTPStatus.NOT_FOUND, {"error": f"no {url.path}; there is {EXAMPLE}"})
        elif self.server.fail_every and number % self.server.fail_every == 0:
            self.answer(HTTPStatus.SERVICE_UNAVAILABLE, {"error": "overloaded, try again"})
        else:
            try:
                area = query["area"]
                prices = day_prices(area, date.fromisoformat(query["day"]))
            except (KeyError, ValueError):
                areas = ", ".join(AREAS)
                self.answer(HTTPStatus.BAD_REQUEST, {"error": f"ask {EXAMPLE}; areas: {areas}"})
            else:
                self.answer(HTTPStatus.OK, {"area": area, "prices": prices})

    def answer(self, status: HTTPStatus, body: dict[str, Any]) -> None:
        """Sends the body as JSON."""
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def day_prices(area: str, day: date) -> list[dict[str, Any]]:
    """Returns the day's 24 prices: high in the morning and the evening, and always the same.

    Raises `KeyError` for an unknown area.
    """
    mean = AREAS[area]
    prices = []
    for hour in range(24):
        starts_at = datetime.combine(day, time(hour), UTC).isoformat()
        noise = sha256(f"{area} {starts_at}".encode()).digest()[0] / 12.8 - 10
        peak = max(0, 6 - min(abs(hour - 8), abs(hour - 18))) * 6
        prices.append({"starts_at": starts_at, "eur_per_mwh": round(mean - 18 + peak + noise, 2)})
    return prices


def main() -> None:
    """Serves until interrupted; prints its address first."""
    parser = argparse.ArgumentParser(prog="python -m tasks.price_server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="which address to listen on")
    parser.add_argument("--port", type=int, default=8737, help="0 picks a free one")
    parser.add_argument("--fail-every", type=int, default=5, metavar="N", help="0: never")
    options = parser.parse_args()
    with PriceServer((options.host, options.port), options.fail_every) as server:
        print(f"http://{options.host}:{server.server_port}", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
