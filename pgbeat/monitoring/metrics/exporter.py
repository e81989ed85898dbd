"""Serves the metrics of a beat or a worker at a separate port, for where no web side runs.

A beat serves those of the database, as the web side does; a worker its own figures. Both add the
standard ones of a process. Only with the setting `pgbeat_metrics_listen`.
"""

import logging
import socket
import threading
from collections import Counter
from collections.abc import Collection, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from pgbeat.database import connections, forks
from pgbeat.database.server_errors import Outage
from pgbeat.monitoring.metrics.families import family, single
from pgbeat.version import __version__

logger = logging.getLogger("pgbeat.metrics")


class WorkerFigures(Collector):
    """A worker's own figures, which Celery's main process keeps, without the database."""

    def __init__(
        self,
        begun: Counter[str],
        running: Collection[Any],
        reserved: Collection[Any],
        namespace: str,
    ) -> None:
        self._begun, self._running, self._reserved = begun, running, reserved
        self._namespace = namespace

    def collect(self) -> Iterable[Metric]:
        """Returns the figures."""
        yield family("pgbeat_info", {(__version__, self._namespace): 1})
        yield family("pgbeat_worker_tasks", {(task,): n for task, n in dict(self._begun).items()})
        yield single("pgbeat_worker_running", len(self._running))
        # Celery's reserved ones include those that run.
        yield single("pgbeat_worker_reserved", max(0, len(self._reserved) - len(self._running)))


def serve(listen: str, collector: Collector) -> ThreadingHTTPServer | None:
    """Serves metrics at `HOST:PORT` in a thread, until the process ends.

    The process goes on without them if the port is taken, which is logged.
    """
    host, _, port = listen.rpartition(":")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    ProcessCollector(registry=registry)
    try:
        server = _Server((host.strip("[]"), int(port)), registry)
    except OSError as error:
        logger.warning("No metrics at %s: %s", listen, error.strerror or error)
        return None
    # A child that holds the port would keep it from the next process.
    forks.in_child(server.socket.close)
    threading.Thread(target=server.serve_forever, name="pgbeat-metrics", daemon=True).start()
    logger.info("Metrics are at port %d", server.server_port)
    return server


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)
        self.registry = registry
        self.outage = Outage()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10.0

    def do_GET(self) -> None:
        """Answers a scrape."""
        status, kind, body = 200, CONTENT_TYPE_LATEST, b""
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            status = 404
        else:
            try:
                body = generate_latest(self.server.registry)
            except Exception as error:  # the database is away
                status, why = 503, connections.first_line(error)
                if self.server.outage.is_news(why, at_once=True):
                    logger.warning("Scrapes fail: %s", why)
            else:
                self.server.outage.end()
        self.send_response(status)
        self.send_header("Content-Type", kind if status == 200 else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs no request."""
