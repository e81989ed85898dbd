"""`pgbeat webhooks`: add, change and test webhooks; list and repeat deliveries."""

import getpass
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest
from click.testing import Result
from psycopg.types.json import Jsonb

from pgbeat.webhooks.signing import new_secret
from tests.support.command_line import Sql, read, refused, run
from tests.support.rows import make_delivery, make_incident
from tests.support.webhook_receiver import Receiver

Webhooks = Callable[..., str]
HOOK = ("--url", "https://hooks.example.com/in", "--event", "job.failed")


@pytest.fixture
def pgbeat(printed: Webhooks) -> Webhooks:
    """Returns what runs `pgbeat webhooks …` successfully, and returns what it prints."""
    return partial(printed, "webhooks")


@pytest.fixture
def receiver(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Receiver:
    """Returns a receiver on 127.0.0.1, which the settings allow."""
    monkeypatch.setenv("PGBEAT_WEBHOOK_PRIVATE", "1")
    return receiver


def happen(sql: Sql, state: str = "pending", log: Any = ()) -> str:
    """Writes a delivery of the webhook; returns its id."""
    [(key,)] = sql("SELECT id FROM pgbeat.webhooks")
    return make_delivery(sql, key, state, attempts=1, log=Jsonb(list(log)))


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in re.split("  +", line)] for line in text.splitlines()]


# -- changed -----------------------------------------------------------------------------------


def test_added_with_a_secret_that_is_shown_once(pgbeat: Webhooks, sql: Sql) -> None:
    first, second = pgbeat("add", "pager", *HOOK, "--event", "tick.failed").splitlines()
    assert first == "Added webhook 'pager': job.failed, tick.failed."
    secret = second.removeprefix("Its secret, which is not shown again: ")
    assert sql("SELECT url, secret, events, created_by FROM pgbeat.webhooks") == [
        (HOOK[1], secret, ["job.failed", "tick.failed"], f"user:{getpass.getuser()}")
    ]
    for command in (["list"], ["list", "--json"], ["show", "pager"], ["show", "pager", "--json"]):
        shown = pgbeat(*command)
        assert secret not in shown
        assert secret.removeprefix("whsec_")[:-4] not in shown


def test_added_with_a_secret_of_one_s_own(
    database: str, pgbeat: Webhooks, sql: Sql, tmp_path: Path
) -> None:
    secret, other = new_secret(), new_secret()
    (tmp_path / "secret").write_text(secret + "\n")
    added = pgbeat("add", "a", *HOOK, "--secret-file", str(tmp_path / "secret"))
    assert added == "Added webhook 'a': job.failed.\n"
    assert secret not in pgbeat("add", "b", *HOOK, "--secret-file", "-", input=other)
    assert sql("SELECT secret FROM pgbeat.webhooks ORDER BY name") == [(secret,), (other,)]
    said = refused(
        run(database, "webhooks", "add", "c", *HOOK, "--secret-file", "-", input="hunter2")
    )
    assert said == "webhook 'c': secret: it must be whsec_ and 24 to 64 random bytes in base64"


def test_added_for_people(
    database: str, pgbeat: Webhooks, receiver: Receiver, tmp_path: Path
) -> None:
    hook = ("--url", receiver.url(), "--event", "job.failed", "--format")
    assert pgbeat("add", "room", *hook, "slack") == "Added webhook 'room': job.failed.\n"
    assert "slack" in pgbeat("show", "room")
    assert "whsec" not in pgbeat("show", "room") + pgbeat("show", "room", "--json")
    (tmp_path / "key").write_text("0123456789abcdef0123456789abcdef\n")
    pgbeat("add", "call", *hook, "pagerduty", "--secret-file", str(tmp_path / "key"))
    assert "previous" not in pgbeat("update", "call", "--secret-file", str(tmp_path / "key"))
    for name in ("room", "call"):
        pgbeat("test", name)
    room, call = (json.loads(request.body) for request in receiver.received)
    assert room["text"] == "A test of webhook 'room'"
    assert call["routing_key"] == "0123456789abcdef0123456789abcdef"
    said = refused(run(database, "webhooks", "add", "x", *hook, "opsgenie"))
    assert said == "webhook 'x': secret: opsgenie needs the API key of an integration"
    said = refused(run(database, "webhooks", "update", "room", "--new-secret"))
    assert said == "webhook 'room': secret: slack takes none; its URL is the secret"


def test_ntfy(database: str, pgbeat: Webhooks, receiver: Receiver) -> None:
    """As the documentation says: ntfy takes the field that the template in the URL names."""
    page = Path(__file__).parents[3] / "docs" / "reference" / "webhooks.md"
    found = re.search(r"`(--format slack) --url\s'https://ntfy[^/]+(/[^']+)'`", page.read_text())
    assert found is not None
    pgbeat(
        "add", "phone", "--url", receiver.url(found[2]), "--event", "job.failed", *found[1].split()
    )
    pgbeat("test", "phone")
    [request] = receiver.received
    [template] = parse_qs(urlsplit(request.path).query)["m"]
    assert request.json[template.strip("{.}")] == "A test of webhook 'phone'"


def test_updated(database: str, pgbeat: Webhooks, sql: Sql) -> None:
    pgbeat("add", "pager", *HOOK)
    [(old,)] = sql("SELECT secret FROM pgbeat.webhooks")
    _, second = pgbeat("update", "pager", "--new-secret").splitlines()
    new = second.removeprefix("Its new secret, which is not shown again: ")
    found = sql("SELECT secret, previous_secret FROM pgbeat.webhooks")
    assert found == [(new, old)]
    assert "old secret  signs too, until " in pgbeat("show", "pager")
    assert "nothing to change" in refused(run(database, "webhooks", "update", "pager"))


# -- looked at ---------------------------------------------------------------------------------


def test_listed(pgbeat: Webhooks, sql: Sql) -> None:
    assert pgbeat("list") == (
        "There are no webhooks; `pgbeat webhooks add --help` says how to add one.\n"
    )
    pgbeat("add", "pager", *HOOK)
    happen(sql)
    happen(sql, "failed")
    sql("UPDATE pgbeat.webhooks SET slots = 1")
    assert cells(pgbeat("list")) == [
        ["webhook", "state", "url", "events", "incidents", "pending", "failed"],
        ["pager", "failing", HOOK[1], "job.failed", "0", "1", "1"],
    ]


def test_deliveries(database: str, pgbeat: Webhooks, sql: Sql) -> None:
    pgbeat("add", "pager", *HOOK)
    assert pgbeat("deliveries", "pager") == "There are no deliveries of webhook 'pager'.\n"
    refusal = {"status": 503, "ms": 12.3, "error": "it answered 503 Service Unavailable"}
    log = [
        {"at": "2026-11-21T12:00:01.5+00:00", "worker": "w1"} | refusal,
        {"at": "2026-11-21T14:00:06+02:00", "worker": "w1"},
        {"at": "2026-11-21T12:01:00+00:00", "redelivered_by": "user:alice"},
        {"at": "2026-11-21T12:01:01+00:00", "worker": "w2", "status": 200, "ms": 4},
    ]
    key = happen(sql, "delivered", log)
    sql("UPDATE pgbeat.deliveries SET created_at = '2026-11-21 12:00Z'")
    first, *others = cells(pgbeat("deliveries", "pager"))[1:]
    at, words = "2026-11-21 12:00:00", "it answered 503 Service Unavailable, 12 ms"
    assert first == [key, at, "job.failed", "delivered", f"12:00:01 {words}"]
    assert [row[-1] for row in others] == [
        "12:00:06 started; its outcome is unknown",
        "12:01:00 requested again by user:alice",
        "12:01:01 200, 4 ms",
    ]
    (row,) = read(database, "webhooks", "deliveries", "pager")
    assert [entry["at"][10:] for entry in row["log"]] == [
        "T12:00:01.500000Z",
        "T12:00:06Z",
        "T12:01:00Z",
        "T12:01:01Z",
    ]
    assert pgbeat("deliveries", "pager", "--state", "failed") == (
        "There are no failed deliveries of webhook 'pager'.\n"
    )
    happen(sql)
    result = run(database, "webhooks", "deliveries", "pager", "--limit", "1")
    assert "none yet" in result.stdout
    assert result.stderr == "Note: there are more than these 1; --limit shows them.\n"


# -- once more ---------------------------------------------------------------------------------


def test_redelivered(database: str, pgbeat: Webhooks, sql: Sql) -> None:
    pgbeat("add", "pager", *HOOK)
    one, two, _ = (happen(sql, state) for state in ("failed", "delivered", "failed"))
    assert pgbeat("redeliver", one, two, "--dry-run") == "2 deliveries are to be tried again.\n"
    assert pgbeat("redeliver", two[:8]) == "1 delivery is tried again.\n"
    assert pgbeat("redeliver", "--failed", "pager") == "2 deliveries are tried again.\n"
    assert pgbeat("redeliver", "--failed", "pager") == "No delivery of webhook 'pager' failed.\n"

    def call(*arguments: str) -> Result:
        return run(database, "webhooks", "redeliver", *arguments)

    assert "--failed NAME" in refused(call())
    assert refused(call(one, "--failed", "pager")) == refused(call())
    assert one in refused(call(one))
    for unknown in (str(uuid4()), "x"):
        assert f"{unknown}" in refused(call(unknown), 1)
    assert run(database, "webhooks", "disable", "pager").stderr.startswith("Note: 3 deliveries")
    assert "`pgbeat webhooks enable`" in refused(call(one))
    assert (
        "`pgbeat webhooks redeliver --failed pager`"
        in run(database, "webhooks", "enable", "pager").stderr
    )


# -- of some events, and of incidents ----------------------------------------------------------


def test_of_some_events(database: str, pgbeat: Webhooks, sql: Sql) -> None:
    filters = ("--schedule", "nightly-*", "--task", "shop.*", "--label", "team=billing")
    pgbeat("add", "room", *HOOK, "--format", "slack", *filters)
    shown = pgbeat("show", "room")
    assert "schedules nightly-*; tasks shop.*; labels team=billing" in shown
    assert "of an incident at growing intervals" in shown
    pgbeat("update", "room", "--each-failure", "--task", "a", "--task", "b")
    columns = "SELECT per_incident, schedules, tasks, labels FROM pgbeat.webhooks"
    assert sql(columns) == [(False, ["nightly-*"], ["a", "b"], {"team": "billing"})]
    pgbeat("update", "room", "--no-filters", "--schedule", "s")
    assert sql(columns) == [(False, ["s"], [], {})]
    assert "only of" in pgbeat("show", "room")
    pgbeat("update", "room", "--no-filters")
    assert "only of" not in pgbeat("show", "room")


def test_incidents_that_are_open(database: str, pgbeat: Webhooks, sql: Sql) -> None:
    pgbeat("add", "room", *HOOK)
    assert read(database, "webhooks", "show", "room")["open_incidents"] == 0
    assert "Nothing fails" in pgbeat("incidents", "room")
    [(key,)] = sql("SELECT id FROM pgbeat.webhooks")
    make_incident(sql, key, "nightly", failures=12, alerts=2)
    assert pgbeat("show", "room").count("1 open") == 1
    [_, [what, *_, failures, sent, _]] = cells(pgbeat("incidents", "room"))
    assert (what, failures, sent) == ("schedule nightly", "12", "2")
    left = "without telling its receiver of the end of 1 incident"
    refusal = run(database, "webhooks", "remove", "room", input="n\n")
    assert left in refusal.output
    assert read(database, "webhooks", "show", "room")["open_incidents"] == 1
    assert left not in run(database, "webhooks", "update", "room", "--task", "a").output
    for change in (["--url", "https://hooks.example.com/b"], ["--each-failure"]):
        assert left in run(database, "webhooks", "update", "room", *change).output
    removed = read(database, "webhooks", "remove", "room", "--yes")
    assert removed == {"name": "room", "removed": True, "open_incidents": 1}


# -- tried -------------------------------------------------------------------------------------


def test_tried(database: str, pgbeat: Webhooks, sql: Sql, receiver: Receiver) -> None:
    pgbeat("add", "pager", "--url", receiver.url(), "--event", "job.failed")
    [(secret,)] = sql("SELECT secret FROM pgbeat.webhooks")
    assert re.fullmatch(r"Delivered: it answered 200 in \d+ ms\.\n", pgbeat("test", "pager"))
    receiver.answers.append(503)
    result = run(database, "webhooks", "test", "pager")
    assert result.exit_code == 1
    assert re.fullmatch(
        r"Not delivered, after \d+ ms: it answered 503 Service Unavailable\.\n", result.stdout
    )
    shown = read(database, "webhooks", "test", "pager")
    assert (shown["delivered"], shown["status"], shown["error"]) == (True, 200, None)
    assert shown["id"] == receiver.received[2].id
    for request in receiver.received:
        assert request.is_signed_with(secret)
        assert request.json["type"] == "webhook.test"
        assert request.json["data"] == {"webhook": "pager", "namespace": "default"}
    assert sql("SELECT 1 FROM pgbeat.deliveries") == []
    pgbeat("disable", "pager")
    result = run(database, "webhooks", "test", "pager")
    assert result.exit_code == 0
    assert "it is disabled; `pgbeat webhooks enable pager` enables it" in result.stderr
