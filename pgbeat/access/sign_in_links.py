"""Makes links that sign a browser in once, and accepts their codes. Only hashes are stored."""

import re
import secrets
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, text

from pgbeat.access import audit, tokens
from pgbeat.access.audit import Author
from pgbeat.access.tokens import Scope, Token
from pgbeat.database.tables import sign_in_links
from pgbeat.errors import InvalidToken

#: The beginning of every code, which no token has.
PREFIX = "pgbeat_once_"
#: How long a link can be used, and how long the browser then stays signed in.
LIFETIME, SESSION = timedelta(minutes=10), timedelta(days=1)
_WRITTEN = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")

_DELETE_OLD_LINKS = text("DELETE FROM pgbeat.sign_in_links WHERE expires_at <= now()")
_DELETE_OLD_SESSIONS = text(
    "DELETE FROM pgbeat.tokens WHERE is_session AND (expires_at <= now() OR revoked_at <= now())"
)


def create(connection: Connection, *, namespace: str, actor: str, scope: Scope) -> str:
    """Returns a new code, which `accept` takes once within `LIFETIME`.

    Deletes links and sessions that have ended.
    """
    connection.execute(_DELETE_OLD_LINKS)
    connection.execute(_DELETE_OLD_SESSIONS)
    code = PREFIX + secrets.token_urlsafe(32)
    values = {
        "hash": tokens.hashed(code),
        "namespace": namespace,
        "actor": actor.removeprefix("user:"),
        "scope": scope,
        "expires_at": func.now() + LIFETIME,
    }
    connection.execute(insert(sign_in_links).values(values))
    return code


def owner(connection: Connection, namespace: str, code: str) -> tuple[str, Scope]:
    """Returns whom a code signs in, with their scope. Raises `InvalidToken`."""
    row = _find(connection, select(*_WHOM), namespace, code)
    return row.actor, row.scope


def accept(connection: Connection, namespace: str, code: str) -> tuple[Token, str]:
    """Uses up a code. Returns the token of the session, and its text. Raises `InvalidToken`.

    Of several at once, one gets a session: the others wait for the row's lock, and find no row.
    """
    row = _find(connection, delete(sign_in_links).returning(*_WHOM), namespace, code)
    author = Author(namespace, f"user:{row.actor}", "page")
    token = tokens.create(
        connection,
        namespace=namespace,
        actor=row.actor,
        scope=row.scope,
        lifetime=SESSION,
        note="signed in by a link",
        created_by=author.name,
        is_session=True,
    )
    audit.record(connection, author, "create", None, token[0])
    return token


_WHOM = (sign_in_links.c.actor, sign_in_links.c.scope)


def _find(connection: Connection, statement: Any, namespace: str, code: str) -> Any:
    """Returns the row that a statement selects or deletes, if it is the valid link of the code."""
    row = None
    if _WRITTEN.fullmatch(code):
        valid = statement.where(
            sign_in_links.c.hash == tokens.hashed(code),
            sign_in_links.c.namespace == namespace,
            sign_in_links.c.expires_at > func.now(),
        )
        row = connection.execute(valid).one_or_none()
    if row is None:
        raise InvalidToken("the sign-in link is invalid, has expired or was used")
    return row
