"""Links that sign a browser in once."""

import re
import threading
import webbrowser
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, text

from pgbeat.access import sign_in_links, tokens
from pgbeat.cli.terminal import browsers
from pgbeat.errors import InvalidToken
from tests.support.rows import Sql
from tests.support.threads import waiting


def create(connection: Connection, **values: str) -> str:
    given = {"namespace": "default", "actor": "user:ada", "scope": "admin", **values}
    return sign_in_links.create(connection, **given)  # type: ignore[arg-type]


def accept(connection: Connection, code: str, namespace: str = "default") -> tokens.Token:
    return sign_in_links.accept(connection, namespace, code)[0]


def test_a_link_gives_a_session_of_a_day(connection: Connection) -> None:
    session, written = sign_in_links.accept(connection, "default", create(connection))
    assert (session.actor, session.scope, session.is_session) == ("ada", "admin", True)
    assert session.expires_at is not None
    assert session.expires_at - session.created_at == sign_in_links.SESSION
    assert tokens.verify(connection, "default", written).id == session.id
    assert not tokens.exist(connection, namespace="default")


def test_it_works_once(connection: Connection) -> None:
    code = create(connection)
    accept(connection, code)
    with pytest.raises(InvalidToken):
        accept(connection, code)


def test_of_two_at_once_one_is_signed_in(engine: Engine, sql: Sql) -> None:
    with engine.begin() as connection:
        code = create(connection)

    def other() -> None:
        with engine.begin() as connection, pytest.raises(InvalidToken):
            accept(connection, code)

    with engine.connect() as connection:
        accept(connection, code)
        with waiting(sql, other):
            connection.commit()


def test_it_expires_and_stays_in_its_namespace(connection: Connection) -> None:
    code = create(connection)
    with pytest.raises(InvalidToken):
        accept(connection, code, "another")
    connection.execute(text("UPDATE pgbeat.sign_in_links SET expires_at = now()"))
    with pytest.raises(InvalidToken):
        accept(connection, code)


def test_what_is_no_code_is_refused(connection: Connection) -> None:
    for code in ("", "pgbeat_once_", "pgbeat_once_" + "x" * 43, "x" * 9999):
        with pytest.raises(InvalidToken):
            accept(connection, code)


def test_a_code_is_no_token(connection: Connection) -> None:
    with pytest.raises(InvalidToken):
        tokens.verify(connection, "default", create(connection))


def test_only_its_hash_is_stored_and_what_has_ended_is_deleted(connection: Connection) -> None:
    code = create(connection)
    row = str(connection.execute(text("SELECT l::text FROM pgbeat.sign_in_links l")).all())
    assert code.removeprefix(sign_in_links.PREFIX) not in row
    session = accept(connection, create(connection))
    tokens.revoke(connection, session.id, namespace="default")
    connection.execute(text("UPDATE pgbeat.sign_in_links SET expires_at = now()"))
    create(connection)
    assert connection.scalar(text("SELECT count(*) FROM pgbeat.sign_in_links")) == 1
    assert tokens.listing(connection, namespace="default") == []


def test_a_browser_is_given_a_file_and_not_the_code() -> None:
    """Everybody on the machine can read the arguments of the browser's process."""
    opened = threading.Event()
    given: list[str] = []

    class Recorder(webbrowser.BaseBrowser):
        def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
            given.append(url)
            opened.set()
            return True

    webbrowser.register("recorder", None, Recorder(), preferred=True)
    with browsers.opened("http://127.0.0.1:1/login#once=a&b"):
        assert opened.wait(10)
        page = Path(given[0].removeprefix("file://"))
        assert page.parent.stat().st_mode & 0o077 == 0
        assert re.findall(r'url=([^"]*)"', page.read_text()) == [
            "http://127.0.0.1:1/login#once=a&amp;b"
        ]
    assert not page.exists()
