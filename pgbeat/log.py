"""Writes log records as JSON, one object a line."""

import json
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pgbeat.config import Settings
from pgbeat.errors import ConfigError
from pgbeat.version import __version__

if TYPE_CHECKING:
    from celery import Celery

_PLAIN = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName", "color_message"}


#: Each returns fields of what runs at the moment: a worker and integrations add theirs.
contexts: list[Callable[[], Mapping[str, Any]]] = []


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object a line.

    It has `time` (ISO 8601, UTC), `level`, `logger`, `process`, `message`, the record's further
    fields, those of `contexts`, and `exception` with the traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as JSON."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        for context in contexts:
            entry |= context()
        more = {k: v for k, v in record.__dict__.items() if k not in _PLAIN and k not in entry}
        if record.exc_info:
            more["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry | more, default=str, ensure_ascii=False)


def use_json(app: "Celery", *loggers: logging.Logger) -> bool:
    """Makes loggers (by default the root's) write JSON if `pgbeat_log_format` is `json`.

    Returns whether it is; false for settings that are wrong.
    """
    try:
        if Settings.load(app.conf).log_format != "json":
            return False
    except ConfigError:
        return False  # reported by what needs the settings
    for logger in loggers or (logging.getLogger(),):
        for handler in logger.handlers:
            handler.setFormatter(JsonFormatter())
    return True


def begin_in_json(program: Any) -> None:
    """Makes Celery's worker or beat write nothing but JSON, from before its log is set up.

    A line in the log takes the banner's place.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.getLogger().addHandler(handler)  # Celery replaces it
    logging.captureWarnings(True)
    program.quiet = True


def worker_starts(name: str, worker: Any) -> None:
    """Logs what the banner of Celery's worker says."""
    starts(
        f"Worker {name} starts",
        worker.app,
        queues=sorted(worker.app.amqp.queues.consume_from),
        pool=worker.pool_cls.__module__,
        concurrency=worker.concurrency,
    )


def starts(message: str, app: "Celery", **fields: Any) -> None:
    """Logs what a banner of Celery's says."""
    versions = {"pgbeat": __version__, "celery": version("celery")}
    more = {"app": app.main, "broker": app.connection().as_uri(), **versions, **fields}
    logging.getLogger("celery.pgbeat").info(message, extra=more)


def say(write: Callable[[int, bytes], object], message: str, file: Any = None) -> None:
    """Writes what a worker says of signals, which Celery writes as text, in a signal's handler."""
    with suppress(OSError, AttributeError, ValueError):
        write((file or sys.stderr).fileno(), line("celery.worker", message))


def line(logger: str, message: str) -> bytes:
    """Returns a line at INFO, for where no logger may be used."""
    values = {"name": logger, "levelname": "INFO", "levelno": logging.INFO, "msg": message}
    return JsonFormatter().format(logging.makeLogRecord(values)).encode() + b"\n"
