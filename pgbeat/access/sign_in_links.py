"""Makes links that sign a browser in once, and accepts their codes. Only hashes are stored."""

import re
import secrets
from datetime import timedelta
from hashlib import sha256

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, text

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
        "hash": _hash(code),
        "namespace": namespace,
        "actor": actor.removeprefix("user:"),
        "scope": scope,
        "expires_at": func.now() + LIFETIME,
    }
    connection.execute(insert(sign_in_links).values(values))
    return code


def owner(connection: Connection, namespace: str, code: str) -> tuple[str, Scope]:
    """Returns whom a code signs in, with their scope. Raises `InvalidToken`."""
    query = select(sign_in_links.c.actor, sign_in_links.c.scope).where(*_is_valid(namespace, code))
    row = connection.execute(query).one_or_none() if _WRITTEN.fullmatch(code) else None
    if row is None:
        raise InvalidToken(_INVALID)
    return row.actor, row.scope


def accept(connection: Connection, namespace: str, code: str) -> tuple[Token, str]:
    """Uses up a code. Returns the token of the session, and its text. Raises `InvalidToken`.

    Of several at once, one gets a session: the others wait for the row's lock, and find no row.
    """
    row = None
    if _WRITTEN.fullmatch(code):
        used = (
            delete(sign_in_links)
            .where(*_is_valid(namespace, code))
            .returning(sign_in_links.c.actor, sign_in_links.c.scope)
        )
        row = connection.execute(used).one_or_none()
    if row is None:
        raise InvalidToken(_INVALID)
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


_INVALID = "the sign-in link is invalid, has expired or was used"


def _is_valid(namespace: str, code: str) -> tuple[ColumnElement[bool], ...]:
    return (
        sign_in_links.c.hash == _hash(code),
        sign_in_links.c.namespace == namespace,
        sign_in_links.c.expires_at > func.now(),
    )


def _hash(code: str) -> bytes:
    # A quick hash is enough: 256 random bits can't be guessed.
    return sha256(code.encode()).digest()
