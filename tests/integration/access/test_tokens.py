"""Tokens: made once, known by a hash, good until they expire or are revoked."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from pgbeat.access import tokens
from pgbeat.access.tokens import Token
from pgbeat.database import connections
from pgbeat.errors import InvalidJob, InvalidToken, NotFound
from tests.support.command_line import Sql, read, refused, run
from tests.support.problems import raises


def create(connection: Connection, **values: Any) -> tuple[Token, str]:
    """A token of alice's, unless told otherwise."""
    given = {"namespace": "default", "actor": "alice", "created_by": "user:tests", **values}
    return tokens.create(connection, **given)


def refusal(connection: Connection, written: str, namespace: str = "default") -> str:
    """Why a text is no good token."""
    with pytest.raises(InvalidToken) as caught:
        tokens.verify(connection, namespace, written)
    return str(caught.value)


def test_a_token_is_known_again(connection: Connection) -> None:
    made, written = create(connection, scope="admin", note="CI")
    found = tokens.verify(connection, "default", written)
    assert found == made
    assert (found.actor, found.scope, found.note) == ("alice", "admin", "CI")
    assert found.expires_at is not None
    assert found.expires_at - found.created_at == timedelta(days=90)


def test_the_secret_is_nowhere_in_the_database(connection: Connection, sql: Sql) -> None:
    _, written = create(connection)
    secret = written.split("_", 2)[2]  # which may have some itself
    [(row,)] = sql("SELECT row_to_json(t)::text FROM pgbeat.tokens t")
    assert secret not in row
    assert secret.encode().hex() not in row


def test_another_text_is_no_token(connection: Connection) -> None:
    cases: list[Callable[[str], str]] = [
        lambda text: text[:-1] + ("A" if text[-1] != "A" else "B"),
        lambda text: text[:-1],
        lambda text: text + "A",
        lambda text: text.replace("pgbeat_", ""),
        lambda text: "pgbeat_00000000_" + text.rpartition("_")[2],
        lambda text: text + "\n",
        lambda text: "",
        lambda text: "pgbeat_\x00_\ud800",
    ]
    # No underscore in the secret, which the first change may cut at.
    written = next(w for _ in range(99) if "_" not in (w := create(connection)[1])[16:])
    for change in cases:
        assert refusal(connection, change(written)) == "invalid or expired token"


def test_a_token_is_one_of_its_namespace(connection: Connection) -> None:
    made, written = create(connection)
    assert refusal(connection, written, "other")
    with pytest.raises(NotFound):
        tokens.revoke(connection, made.id, namespace="other")
    assert tokens.listing(connection, namespace="other") == []


def test_an_expired_token_says_when(connection: Connection, sql: Sql) -> None:
    made, written = create(connection, lifetime=timedelta(hours=1))
    sql("UPDATE pgbeat.tokens SET expires_at = '2026-01-02 03:04Z'")
    assert refusal(connection, written).startswith("the token expired at 2026-01-02 03:04 UTC")
    [row] = tokens.listing(connection, namespace="default")
    assert (made.state(connections.now(connection)), row.state(connections.now(connection))) == (
        "active",
        "expired",
    )


def test_never_is_never(connection: Connection) -> None:
    made, written = create(connection, lifetime=None)
    assert made.expires_at is None
    assert tokens.verify(connection, "default", written).id == made.id


def test_a_revoked_token_stays_so(connection: Connection) -> None:
    made, written = create(connection)
    first = tokens.revoke(connection, made.id, namespace="default")
    assert refusal(connection, written).startswith("the token was revoked")
    assert tokens.revoke(connection, made.id, namespace="default") == first


def test_its_use_is_noted_to_the_minute(connection: Connection, sql: Sql) -> None:
    _, written = create(connection)

    def used() -> Any:
        tokens.verify(connection, "default", written)
        return sql("SELECT last_used_at FROM pgbeat.tokens")[0][0]

    first = used()
    assert first is not None
    assert used() == first
    sql("UPDATE pgbeat.tokens SET last_used_at = now() - interval '2 minutes'")
    assert used() > first


def test_what_can_be_no_token_is_refused(connection: Connection, sql: Sql) -> None:
    cases: list[tuple[dict[str, Any], tuple[str, str]]] = [
        ({"actor": ""}, ("actor", "malformed")),
        ({"actor": "a\r\nb"}, ("actor", "malformed")),
        ({"actor": " alice"}, ("actor", "malformed")),
        ({"actor": "x" * 201}, ("actor", "malformed")),
        ({"scope": "root"}, ("scope", "unknown")),
        ({"lifetime": timedelta(0)}, ("lifetime", "out_of_range")),
        ({"lifetime": timedelta(days=36_501)}, ("lifetime", "out_of_range")),
    ]
    for values, problem in cases:
        with raises(InvalidJob, problem):
            create(connection, **values)
        assert sql("SELECT 1 FROM pgbeat.tokens") == []


def test_whether_there_is_one_in_use(connection: Connection, sql: Sql) -> None:
    assert not tokens.exist(connection, namespace="default")
    made, _ = create(connection, lifetime=None)
    assert tokens.exist(connection, namespace="default")
    assert not tokens.exist(connection, namespace="other")
    tokens.revoke(connection, made.id, namespace="default")
    assert not tokens.exist(connection, namespace="default")
    create(connection)
    sql("UPDATE pgbeat.tokens SET expires_at = now() - interval '1 s'")
    assert not tokens.exist(connection, namespace="default")


def test_create_prints_the_token_alone(database: str, connection: Connection) -> None:
    result = run(database, "tokens", "create", "--for", "alice", "--scope", "admin")
    assert result.exit_code == 0, result.output
    found = tokens.verify(connection, "default", result.stdout.strip())
    assert (found.actor, found.scope) == ("alice", "admin")
    assert result.stderr.startswith(f"Note: token {found.id} of alice (admin) is valid")


def test_create_in_json(database: str, connection: Connection) -> None:
    made = read(database, "tokens", "create", "--for", "user:bob", "--expires", "never")
    assert (made["actor"], made["expires_at"], made["state"]) == ("bob", None, "active")
    assert tokens.verify(connection, "default", made["token"]).id == made["id"]


def test_list_shows_those_in_use(database: str, connection: Connection) -> None:
    assert "There are no tokens. `pgbeat tokens create" in run(database, "tokens", "list").stdout
    old, _ = create(connection, actor="old")
    tokens.revoke(connection, old.id, namespace="default")
    assert "no tokens in use; --all shows 1 other" in run(database, "tokens", "list").stdout
    new, _ = create(connection, actor="new", note="CI")
    assert [row["id"] for row in read(database, "tokens", "list")] == [new.id]
    everything = read(database, "tokens", "list", "--all")
    assert [(row["id"], row["state"]) for row in everything] == [
        (new.id, "active"),
        (old.id, "revoked"),
    ]
    assert "hash" not in everything[0]
    [_, line] = run(database, "tokens", "list").stdout.splitlines()
    assert line.split()[:4] == [new.id, "new", "user", "active"]


def test_revoke(database: str, connection: Connection, sql: Sql) -> None:
    made, written = create(connection)
    said = run(database, "tokens", "revoke", made.id, "--dry-run").stdout
    assert said == f"Would revoke token {made.id} of alice (user).\n"
    tokens.verify(connection, "default", written)
    # The whole text does, too: who finds one has no id.
    assert run(database, "tokens", "revoke", written).stdout.startswith("Revoked token ")
    refusal(connection, written)
    assert "was revoked already" in run(database, "tokens", "revoke", made.id).stdout
    assert sql("SELECT verb, kind, subject, origin FROM pgbeat.audit") == [
        ("revoke", "token", made.id, "cli")
    ]


def test_there_is_no_such_token(database: str) -> None:
    said = refused(run(database, "tokens", "revoke", "nope"), 1)
    assert said == "there is no token 'nope'; `pgbeat tokens list` shows all tokens"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--for", "a\nb"], "a\\nb"),
        (["--for", "a", "--expires", "soon"], "'--expires'"),
        (["--for", "a", "--expires", "0"], "lifetime"),
        (["--for", "a", "--expires", "99999999999 days"], "'--expires'"),
        (["--for", "a", "--scope", "root"], "'--scope'"),
        ([], "'--for'"),
    ],
)
def test_a_bad_token_is_refused(database: str, sql: Sql, arguments: list[str], named: str) -> None:
    result = run(database, "tokens", "create", *arguments)
    assert result.exit_code in (1, 2)
    assert named in result.stderr
    assert sql("SELECT 1 FROM pgbeat.tokens") == []
