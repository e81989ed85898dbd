"""Writes log records as JSON, one object a line."""

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pgbeat.config import Settings
from pgbeat.errors import ConfigError

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


def line(logger: str, message: str) -> bytes:
    """Returns a line at INFO, for where no logger may be used."""
    values = {"name": logger, "levelname": "INFO", "levelno": logging.INFO, "msg": message}
    return JsonFormatter().format(logging.makeLogRecord(values)).encode() + b"\n"
