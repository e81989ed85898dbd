"""Notes: each change that the web side makes, for the audit."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from pgbeat import audit
from pgbeat.audit import Author
from pgbeat.web.backend import Backend
from pgbeat.web.identity import Caller


def author(backend: Backend, caller: Caller) -> Author:
    """Who makes a change, for `pgbeat.notes`."""
    return Author(backend.namespace, caller.name, caller.origin)


def note(
    connection: Connection,
    backend: Backend,
    caller: Caller,
    verb: str,
    kind: str,
    subject: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Notes a change that `pgbeat.notes` has no words for, as `audit.note` does."""
    audit.note(connection, author(backend, caller), verb, kind, subject, before, after)
