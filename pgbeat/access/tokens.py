"""Makes and verifies tokens, with which actors use the API. Only hashes of secrets are stored."""

import hmac
import re
import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Literal, NamedTuple, get_args

from sqlalchemy import Connection, func, insert, select, text, update

from pgbeat.access.actors import is_name
from pgbeat.database.named_rows import not_found
from pgbeat.database.privileges import may_change
from pgbeat.database.tables import tokens
from pgbeat.errors import InvalidJob, InvalidToken

#: What the bearer may do. `metrics` is for Prometheus: it may read `/metrics` and nothing else.
Scope = Literal["user", "viewer", "metrics", "admin"]
#: The beginning of every token, by which people and scanners recognize one.
PREFIX = "pgbeat_"
#: The default lifetime, and the longest one that is not unlimited.
LIFETIME, LONGEST = timedelta(days=90), timedelta(days=36_500)
# The shortest time between two updates of `last_used_at`.
_USED_EVERY = timedelta(minutes=1)


class Token(NamedTuple):
    """A row of `pgbeat.tokens`, without the hash."""

    id: str
    #: `alice` for the actor `user:alice`.
    actor: str
    scope: Scope
    note: str | None
    created_by: str
    created_at: datetime
    #: `None` for never.
    expires_at: datetime | None
    revoked_at: datetime | None
    #: To the minute.
    last_used_at: datetime | None
    #: Whether a browser has it that was signed in by a link. It is revoked as that signs out.
    is_session: bool

    def state(self, now: datetime) -> Literal["active", "expired", "revoked"]:
        """Returns the state at a time."""
        if self.revoked_at is not None:
            return "revoked"
        is_over = self.expires_at is not None and self.expires_at <= now
        return "expired" if is_over else "active"

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of it."""
        return "token", self.id, {"actor": self.actor, "scope": self.scope, "note": self.note}


_COLUMNS = [tokens.c[name] for name in Token._fields]


def create(
    connection: Connection,
    *,
    namespace: str,
    actor: str,
    scope: Scope = "user",
    lifetime: timedelta | None = LIFETIME,
    note: str | None = None,
    created_by: str,
    is_session: bool = False,
) -> tuple[Token, str]:
    """Makes a token. Returns it with its text, which can't be read again.

    A `lifetime` of `None` is unlimited. Raises `InvalidJob`.
    """
    actor = actor.removeprefix("user:")
    if not is_name(actor):
        raise InvalidJob.of(
            "actor",
            "malformed",
            "the owner of a token must be a name of up to 200 printable characters, without blanks "
            f"at its ends, got {actor!r}",
        )
    if scope not in get_args(Scope):
        message = f"scope must be one of {', '.join(get_args(Scope))}, got {scope!r}"
        raise InvalidJob.of("scope", "unknown", message)
    if lifetime is not None and not timedelta(0) < lifetime <= LONGEST:
        message = "the lifetime of a token must be positive and at most 36,500 days"
        raise InvalidJob.of("lifetime", "out_of_range", message)
    token_id, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
    values = {
        "id": token_id,
        "namespace": namespace,
        "actor": actor,
        "scope": scope,
        "note": note,
        "hash": hashed(secret),
        "created_by": created_by,
        "expires_at": None if lifetime is None else func.now() + lifetime,
        "is_session": is_session,
    }
    row = connection.execute(insert(tokens).values(values).returning(*_COLUMNS)).one()
    return Token(*row), f"{PREFIX}{token_id}_{secret}"


_WRITTEN = re.compile(rf"{PREFIX}([0-9a-f]{{8}})_([A-Za-z0-9_-]{{43}})")
_USED = text("UPDATE pgbeat.tokens SET last_used_at = now() WHERE id = :id")


def verify(connection: Connection, namespace: str, written: str) -> Token:
    """Returns the token with that text. Raises `InvalidToken`.

    Only with the right secret does the error say that the token has expired or was revoked.
    """
    parts = _WRITTEN.fullmatch(written)
    if parts is None:
        raise InvalidToken("invalid or expired token")
    token_id, secret = parts.groups()
    query = select(*_COLUMNS, tokens.c.hash, func.now()).where(
        tokens.c.id == token_id, tokens.c.namespace == namespace
    )
    row = connection.execute(query).one_or_none()
    known = b"" if row is None else bytes(row[-2])
    if not hmac.compare_digest(known, hashed(secret)) or row is None:
        raise InvalidToken("invalid or expired token")
    token, now = Token(*row[:-2]), row[-1]
    if token.revoked_at is not None:
        raise InvalidToken("the token was revoked; `pgbeat tokens create` makes another")
    if token.expires_at is not None and token.expires_at <= now:
        raise InvalidToken(
            f"the token expired at {token.expires_at:%Y-%m-%d %H:%M %Z}; `pgbeat tokens create` "
            "makes another"
        )
    is_noted = token.last_used_at is not None and token.last_used_at > now - _USED_EVERY
    if not is_noted and may_change(connection, "tokens"):
        connection.execute(_USED, {"id": token.id})
    return token


_ACTIVE = text(
    """
    SELECT id FROM pgbeat.tokens
     WHERE id = ANY (CAST(:ids AS text[])) AND namespace = :namespace AND revoked_at IS NULL
       AND (expires_at IS NULL OR expires_at > statement_timestamp())
    """
)


def active(connection: Connection, ids: Iterable[str], *, namespace: str) -> set[str]:
    """Returns the ids of those of the tokens that are still active."""
    return set(connection.scalars(_ACTIVE, {"ids": list(ids), "namespace": namespace}))


def listing(connection: Connection, *, namespace: str) -> list[Token]:
    """Returns all tokens, the newest first."""
    query = select(*_COLUMNS).where(tokens.c.namespace == namespace)
    query = query.order_by(tokens.c.created_at.desc(), tokens.c.id)
    return [Token(*row) for row in connection.execute(query)]


def exist(connection: Connection, *, namespace: str) -> bool:
    """Returns whether there is an active token, besides those of sessions."""
    query = select(tokens.c.id).where(
        tokens.c.namespace == namespace,
        ~tokens.c.is_session,
        tokens.c.revoked_at.is_(None),
        func.coalesce(tokens.c.expires_at, text("'infinity'")) > func.now(),
    )
    return connection.execute(query.limit(1)).one_or_none() is not None


def revoke(connection: Connection, token_id: str, *, namespace: str) -> Token:
    """Revokes a token for ever, unless it is revoked already. Raises `NotFound`."""
    row = connection.execute(
        update(tokens)
        .where(tokens.c.id == token_id, tokens.c.namespace == namespace)
        .values(revoked_at=func.coalesce(tokens.c.revoked_at, func.now()))
        .returning(*_COLUMNS)
    ).one_or_none()
    if row is None:
        raise not_found("token", token_id)
    return Token(*row)


def hashed(secret: str) -> bytes:
    """Returns what is stored of a secret. It has 256 random bits, so a quick hash is enough."""
    return sha256(secret.encode()).digest()
