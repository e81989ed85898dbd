"""Notes: each change that the web side makes, for the audit."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from pgbeat import audit
from pgbeat.web.backend import Backend
from pgbeat.web.identity import Caller


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
    """Notes a change, in the transaction that makes it.

    `before` and `after` are how the thing was and is, as JSON (`model_dump(mode="json")`); what is
    the same in both is left out. Without them it is noted that it was done.
    """
    old, new = audit.differing(before, after)
    audit.record(
        connection,
        namespace=backend.namespace,
        actor=caller.name,
        origin=caller.origin,
        verb=verb,
        kind=kind,
        subject=subject,
        before=old,
        after=new,
    )
