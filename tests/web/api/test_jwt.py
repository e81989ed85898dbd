"""Callers by JWTs of the team's issuer."""

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import jwt
import pytest
from celery import Celery
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from httpx import Response

from pgbeat.errors import ConfigError
from pgbeat.web import issuer as issuers
from tests.support.command_line import Sql
from tests.support.processes import until
from tests.support.web import PATIENCE, Web, done, opened, problem, served
from tests.web.api.made_schedules import PATH, SCHEDULE

SECRET = "s" * 32

#: What anybody may ask who is known, and only an administrator.
ANYBODY, ADMIN = "/scheduler/metrics", "/scheduler/status"


def claims(**changes: Any) -> dict[str, Any]:
    """Alice's, good for an hour; `None` leaves one out."""
    given = {"sub": "alice", "exp": int(time.time()) + 3600, **changes}
    return {key: value for key, value in given.items() if value is not None}


def signed(key: Any = SECRET, algorithm: str = "HS256", **changes: Any) -> str:
    """A JWT of these claims."""
    return jwt.encode(claims(**changes), key, algorithm=algorithm)


def pem(key: Any) -> str:
    """A private key's public half."""
    return str(
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


@pytest.fixture(scope="module")
def rsa_key() -> Any:
    """An issuer's private key."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="module")
def ec_key() -> Any:
    """An issuer's private key."""
    return ec.generate_private_key(ec.SECP256R1())


def ask(web: Web, written: str, path: str = ANYBODY) -> Response:
    """What who shows that is answered."""
    answer: Response = web.client(written).get(path)
    return answer


def test_a_jwt_says_who_asks(app: Celery, sql: Sql) -> None:
    with opened(app, web_jwt_key=SECRET) as web:
        done(ask(web, signed()))
        problem(ask(web, signed(), ADMIN), 403)
        admin = web.client(signed(sub="root", role="admin"))
        done(admin.post(PATH, json=SCHEDULE), 201)
        # A token is as good as before.
        done(web.user.get(ANYBODY))
    assert sql("SELECT actor FROM pgbeat.audit") == [("user:root",)]


#: What makes a good JWT one that is not for us.
WRONG_CLAIMS: list[dict[str, Any]] = [
    {"exp": 1},
    {"exp": None},
    {"exp": "soon"},
    {"exp": float("1e400")},
    {"exp": 10**400},
    {"sub": None},
    {"sub": 5},
    {"sub": " "},
    {"sub": "a\nb"},
    {"sub": "a" * 50_000},
    {"sub": "a\u202eb"},
    {"nbf": int(time.time()) + 3600},
    {"iss": "elsewhere"},
    {"iss": None},
    {"aud": "others"},
    {"aud": None},
]


def test_a_jwt_that_is_not_for_us_is_refused(app: Celery) -> None:
    good: dict[str, Any] = {"iss": "https://idp", "aud": ["x", "pgbeat"]}
    issuer = {"web_jwt_issuer": "https://idp", "web_jwt_audience": "pgbeat"}
    with opened(app, web_jwt_key=SECRET, **issuer) as web:
        done(ask(web, signed(**good)))
        for changes in WRONG_CLAIMS:
            raw = _raw({"alg": "HS256"}, claims(**{**good, **changes}), SECRET)
            said = problem(ask(web, raw), 401)
            assert said.startswith("the JWT is not accepted: "), changes


def _raw(header: dict[str, Any], payload: dict[str, Any], secret: str) -> str:
    """Signed by HMAC, whatever is in it: PyJWT makes nothing that is wrong."""
    import base64
    import hmac

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    head = part(json.dumps({"typ": "JWT", **header}).encode())
    body = part(json.dumps(payload).encode())
    seal = hmac.digest(secret.encode(), f"{head}.{body}".encode(), "sha256")
    return f"{head}.{body}.{part(seal)}"


def test_a_jwt_that_is_not_signed_by_the_secret_is_refused(app: Celery) -> None:
    with opened(app, web_jwt_key=SECRET) as web:
        for algorithm in ("none", "None", "HS512", "RS256", "", "hs256"):
            forged = _raw({"alg": algorithm}, claims(), SECRET)
            problem(ask(web, forged), 401)
            problem(ask(web, forged.rpartition(".")[0] + "."), 401)
        problem(ask(web, signed("t" * 32)), 401)
        problem(ask(web, signed()[:-2]), 401)


@pytest.mark.parametrize("kind", ["RS256", "ES256"])
def test_a_jwt_by_the_issuers_public_key(app: Celery, rsa_key: Any, ec_key: Any, kind: str) -> None:
    own, other = (rsa_key, ec_key) if kind == "RS256" else (ec_key, rsa_key)
    other_kind = "ES256" if kind == "RS256" else "RS256"
    with opened(app, web_jwt_key=pem(own), web_jwt_algorithms=kind) as web:
        done(ask(web, signed(own, kind)))
        problem(ask(web, signed(other, other_kind)), 401)
        # The public key is no secret: nobody signs by it.
        problem(ask(web, _raw({"alg": "HS256"}, claims(role="admin"), pem(own))), 401)
        problem(ask(web, _raw({"alg": "none"}, claims(), "").rpartition(".")[0] + "."), 401)


def test_a_key_that_is_none_is_told_at_once(app: Celery, ec_key: Any) -> None:
    broken = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"
    for key in (broken, pem(ec_key)):
        with (
            pytest.raises(ConfigError, match="not a public key for RS256"),
            opened(app, web_jwt_key=key, web_jwt_algorithms="RS256"),
        ):
            pass


@pytest.mark.parametrize(
    ("setting", "given", "is_admin"),
    [
        ("role=admin", {"role": "admin"}, True),
        ("role=admin", {"role": "administrator"}, False),
        ("role=admin", {"role": ["user", "admin"]}, True),
        ("role=admin", {"role": {"admin": 1}}, False),
        ("role=admin", {}, False),
        ("scope=pgbeat:admin", {"scope": "openid pgbeat:admin"}, True),
        ("scope=pgbeat:admin", {"scope": "openid pgbeat:administrate"}, False),
        ("https://x.y/roles=ops", {"https://x.y/roles": ["ops"]}, True),
        ("realm_access.roles=admin", {"realm_access": {"roles": ["admin"]}}, True),
        ("realm_access.roles=admin", {"realm_access": "admin"}, False),
        ("admin=true", {"admin": True}, True),
        ("admin=true", {"admin": 1}, False),
        ("", {"role": "admin", "": ""}, False),
    ],
)
def test_a_claim_makes_an_administrator(
    app: Celery, setting: str, given: dict[str, Any], is_admin: bool
) -> None:
    with opened(app, web_jwt_key=SECRET, web_jwt_admin=setting) as web:
        answer = ask(web, signed(**given), ADMIN)
    assert answer.status_code == (200 if is_admin else 403)


def test_a_claim_makes_a_viewer_who_is_no_administrator(app: Celery) -> None:
    with opened(app, web_jwt_key=SECRET) as web:
        assert ask(web, signed(role="viewer"), ADMIN).status_code == 200
        viewer = web.client(signed(sub="vera", role="viewer"))
        assert viewer.post(PATH, json=SCHEDULE).json()["code"] == "read_only"
        both = web.client(signed(sub="root", role=["viewer", "admin"]))
        done(both.post(PATH, json=SCHEDULE), 201)


class Issuer:
    """Publishes keys by HTTP, and counts how often they are asked for."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {}
        self.asked = 0
        #: While it is not set, requests get no answer.
        self.answers = threading.Event()
        self.answers.set()
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                issuer.answers.wait()
                published = [
                    {**json.loads(issuer.jwk(key)), "kid": kid, "use": "sig"}
                    for kid, key in issuer.keys.items()
                ]
                body = json.dumps({"keys": published}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @staticmethod
    def jwk(key: Any) -> str:
        """The public half, as JSON."""
        kind = "ES256" if isinstance(key, ec.EllipticCurvePrivateKey) else "RS256"
        return str(jwt.get_algorithm_by_name(kind).to_jwk(key.public_key()))

    def close(self) -> None:
        """Is away from now on."""
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """An issuer that publishes its keys."""
    made = Issuer()
    yield made
    if made._thread.is_alive():
        made.close()


def by_kid(key: Any, kid: str, algorithm: str) -> str:
    """A JWT that names its key."""
    return jwt.encode(claims(), key, algorithm=algorithm, headers={"kid": kid})


def test_keys_are_had_from_the_issuer(
    app: Celery, issuer: Issuer, rsa_key: Any, ec_key: Any
) -> None:
    issuer.keys = {"one": rsa_key, "two": ec_key}
    settings = {"web_jwt_jwks": issuer.url, "web_jwt_algorithms": "RS256,ES256"}
    with opened(app, **settings) as web:
        done(ask(web, by_kid(rsa_key, "one", "RS256")))
        done(ask(web, by_kid(ec_key, "two", "ES256")))
        problem(ask(web, by_kid(ec_key, "one", "ES256")), 401)
        problem(ask(web, by_kid(rsa_key, "three", "RS256")), 401)
        problem(ask(web, signed(rsa_key, "RS256")), 401)
        # Nobody has the issuer asked again and again.
        before = issuer.asked
        for _ in range(3):
            problem(ask(web, by_kid(rsa_key, "four", "RS256")), 401)
        assert issuer.asked == before <= 2
        problem(ask(web, _raw({"alg": "HS256", "kid": "one"}, claims(), pem(rsa_key))), 401)


def test_an_issuer_that_is_away_is_no_reason_to_refuse(
    app: Celery, issuer: Issuer, rsa_key: Any
) -> None:
    issuer.close()
    with opened(app, web_jwt_jwks=issuer.url, web_jwt_algorithms="RS256") as web:
        answer = ask(web, by_kid(rsa_key, "one", "RS256"))
        assert "the issuer's keys can't be fetched" in problem(answer, 503)
        # What is no JWT of ours isn't asked about.
        problem(ask(web, signed()), 401)
        problem(ask(web, "x.y.z"), 401)
        done(web.user.get(ANYBODY))


def get(client: httpx.Client, path: str, written: str = "none", timeout: float = 3.0) -> int:
    """The status of an answer to who shows that."""
    headers = {"Authorization": f"Bearer {written}"}
    return client.get(path, headers=headers, timeout=timeout).status_code


def test_an_issuer_that_hangs_keeps_nobody_else_waiting(
    app: Celery, rsa_key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are 40 threads for all requests, and each that shows a JWT has one."""
    monkeypatch.setattr(issuers, "_TIMEOUT", 4.0)
    statuses: list[int] = []
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        silent.setblocking(False)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with (
            opened(app, web_jwt_jwks=url, web_jwt_algorithms="RS256") as web,
            served(web) as host,
            httpx.Client(base_url=host) as client,
        ):

            def show(kid: str) -> None:
                written = by_kid(rsa_key, kid, "RS256")
                statuses.append(get(client, ANYBODY, written, PATIENCE))

            threads = [threading.Thread(target=show, args=(f"k{n}",)) for n in range(45)]
            for thread in threads:
                thread.start()
            assert select.select([silent], [], [], PATIENCE)[0]
            assert get(client, "/healthz") == 200
            assert get(client, ANYBODY, web.token("alice")) == 200
            assert len(statuses) < len(threads)
            for thread in threads:
                thread.join(PATIENCE)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):  # it was asked once
            silent.accept()
    assert statuses == [503] * len(threads)


def test_keys_that_are_known_don_t_wait_for_others(
    app: Celery, issuer: Issuer, rsa_key: Any
) -> None:
    issuer.keys = {"one": rsa_key}
    with opened(app, web_jwt_jwks=issuer.url, web_jwt_algorithms="RS256") as web:
        done(ask(web, by_kid(rsa_key, "one", "RS256")))
        web.app.state.pgbeat.issuer._published.cooldown_duration = 0
        issuer.answers.clear()
        other = threading.Thread(target=ask, args=(web, by_kid(rsa_key, "two", "RS256")))
        other.start()
        until(lambda: issuer.asked == 2)
        done(ask(web, by_kid(rsa_key, "one", "RS256")))
        assert other.is_alive()
        issuer.answers.set()
        other.join()
