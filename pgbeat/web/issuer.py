"""Verifies JWTs of the team's own issuer, by the settings `web_jwt_*` (RFC 7519, RFC 8725)."""

import logging
import threading
import time
from typing import Any

import jwt

from pgbeat.access.actors import is_name
from pgbeat.access.tokens import Scope
from pgbeat.config import Settings
from pgbeat.errors import ConfigError, InvalidToken

logger = logging.getLogger("pgbeat.web")

#: Seconds by which the issuer's clock may differ from ours.
_LEEWAY = 10
#: Seconds that the issuer has to respond, and that its keys are cached.
_TIMEOUT, _LIFESPAN = 5.0, 300.0
#: Seconds after a failure until the issuer is asked again, and how many requests may wait for its
#: keys: each takes one of 40 threads, which serve all other requests, too.
_PAUSE, _WAITING = 15.0, 20
_AWAY = "the issuer's keys can't be fetched now; try again"


class IssuerAway(Exception):
    """The issuer's keys can't be fetched, so a JWT can't be verified."""


class Issuer:
    """Verifies JWTs, in any thread. Raises `ConfigError` for a public key that can't be read."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiting, self._asking = threading.BoundedSemaphore(_WAITING), threading.Lock()
        self._away_until = 0.0
        url = settings.web_jwt_jwks
        self._published = (
            jwt.PyJWKClient(url, lifespan=_LIFESPAN, timeout=_TIMEOUT) if url else None
        )
        algorithm = jwt.get_algorithm_by_name(settings.web_jwt_algorithms[0])
        if self._published is None:
            try:
                algorithm.prepare_key(settings.web_jwt_key)
            except (jwt.PyJWTError, ValueError, TypeError):
                raise ConfigError(
                    "pgbeat_web_jwt_key: not a public key for "
                    f"{settings.web_jwt_algorithms[0]}; write it as PEM"
                ) from None

    def verify(self, written: str) -> tuple[str, Scope, float]:
        """Returns its subject, what that may do, and the seconds until it expires.

        Raises `InvalidToken` and `IssuerAway`.
        """
        s = self._settings
        try:
            claims = jwt.decode(
                written,
                self._key(written),
                algorithms=list(s.web_jwt_algorithms),
                issuer=s.web_jwt_issuer or None,
                audience=s.web_jwt_audience or None,
                options={"require": ["exp", "sub"], "verify_aud": bool(s.web_jwt_audience)},
                leeway=_LEEWAY,
            )
            left = float(claims["exp"]) + _LEEWAY - time.time()
        except (jwt.PyJWKClientConnectionError, OSError) as error:
            logger.warning("The issuer's keys can't be fetched: %s", error)
            raise IssuerAway(_AWAY) from None
        except jwt.PyJWKSetError as error:
            logger.warning("The issuer publishes no usable keys: %s", error)
            raise IssuerAway("the issuer publishes no usable keys") from None
        except (jwt.PyJWTError, ArithmeticError, ValueError, TypeError, RecursionError) as error:
            # Other errors than PyJWT's are about the form of the text.
            problem = str(error)[:200] if isinstance(error, jwt.PyJWTError) else "it can't be read"
            raise InvalidToken(f"the JWT is not accepted: {problem}") from None
        if not isinstance(claims["sub"], str) or not is_name(claims["sub"]):
            raise InvalidToken(
                "the JWT is not accepted: its sub must be a name of up to 200 printable "
                "characters, without blanks at its ends"
            )
        return claims["sub"], self._scope(claims), max(0.0, left)

    def _key(self, written: str) -> Any:
        if self._published is None:
            return self._settings.web_jwt_key
        # Checked first, so that a text that is no JWT causes no request to the issuer.
        header = jwt.get_unverified_header(written)
        if header.get("alg") not in self._settings.web_jwt_algorithms:
            raise InvalidToken(
                f"the JWT is not accepted: it is not signed by "
                f"{', '.join(self._settings.web_jwt_algorithms)}"
            )
        kid = str(header.get("kid"))
        key = _cached(self._published, kid)
        return self._awaited(self._published, kid) if key is None else key

    def _awaited(self, published: jwt.PyJWKClient, kid: str) -> Any:
        """Fetches the keys, or waits for another request that does."""
        if not self._waiting.acquire(blocking=False):
            raise IssuerAway(_AWAY)
        try:
            if not self._asking.acquire(timeout=_TIMEOUT):
                raise IssuerAway(_AWAY)
            try:
                key = _cached(published, kid)
                return self._fetched(published, kid) if key is None else key
            finally:
                self._asking.release()
        finally:
            self._waiting.release()

    def _fetched(self, published: jwt.PyJWKClient, kid: str) -> Any:
        if time.monotonic() < self._away_until:
            raise IssuerAway(_AWAY)
        try:
            return published.get_signing_key(kid).key
        except (jwt.PyJWKClientConnectionError, jwt.PyJWKSetError, OSError, ValueError):
            self._away_until = time.monotonic() + _PAUSE
            raise

    def _scope(self, claims: dict[str, Any]) -> Scope:
        if _has(claims, self._settings.web_jwt_admin):
            return "admin"
        return "viewer" if _has(claims, self._settings.web_jwt_viewer) else "user"


def _cached(published: jwt.PyJWKClient, kid: str) -> Any:
    """Returns a key that was fetched lately; `None` if there is none. It waits for nobody."""
    cache = published.jwk_set_cache
    keys: Any = cache.get() if cache is not None else None
    if isinstance(keys, dict):  # as PyJWT 2.14 keeps them
        keys = jwt.PyJWKSet.from_dict(keys)
    for key in keys.keys if keys is not None else ():
        if key.key_id == kid and key.public_key_use in ("sig", None):
            return key.key
    return None


def _has(claims: dict[str, Any], claim: str) -> bool:
    """Returns whether there is a claim with that value, written as `role=admin`."""
    name, _, wanted = (part.strip() for part in claim.partition("="))
    if not name:
        return False
    value: Any = claims.get(name)
    if name not in claims:  # `realm_access.roles`
        value = claims
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower() == wanted
    if isinstance(value, str):
        return wanted in value.split() or wanted == value
    return isinstance(value, list) and wanted in value
