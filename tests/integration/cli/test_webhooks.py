"""`pgbeat webhooks`: add, change and test webhooks; list and repeat deliveries."""

import getpass
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from click.testing import Result

from pgbeat.database.tables import EVENTS
from pgbeat.webhooks.signing import new_secret
from tests.support.command_line import Sql, read, refused, run, run_with
from tests.support.webhook_receiver import Receiver

Webhooks = Callable[..., str]
HOOK = ("--url", "https://hooks.example.com/in", "--event", "job.failed")


@pytest.fixture
def pgbeat(database: str) -> Webhooks:
    """Returns what runs `pgbeat webhooks …` successfully, and returns what it prints."""

    def call(*arguments: str, **options: Any) -> str:
        result = run(database, "webhooks", *arguments, **options)
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout

    return call


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Yields a receiver on 127.0.0.1, which the settings allow."""
    monkeypatch.setenv("PGBEAT_WEBHOOK_PRIVATE", "1")
    running = Receiver()
    yield running
    running.close()


def happen(sql: Sql, state: str = "pending", log: str = "[]", event: str = "job.failed") -> str:
    """Writes a delivery of each webhook; returns the id of one."""
    [(key,)] = sql(
        "INSERT INTO pgbeat.deliveries (webhook_id, event, payload, state, next_at, finished_at, "
        "    log, attempts) SELECT id, %s, '{}', %s, CASE WHEN %s THEN now() END, "
        "    CASE WHEN NOT %s THEN now() END, %s, 1 FROM pgbeat.webhooks RETURNING id",
        event,
        state,
        state == "pending",
        state == "pending",
        log,
    )
    return str(key)


def cells(text: str) -> list[list[str]]:
    """Returns the cells of a table."""
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


def test_json_of_what_was_added(pgbeat: Webhooks, sql: Sql) -> None:
    made = json.loads(pgbeat("add", "all", "--url", HOOK[1], "--event", "all", "--json"))
    assert made["events"] == list(EVENTS)
    assert sql("SELECT secret FROM pgbeat.webhooks") == [(made["secret"],)]
    shown = json.loads(pgbeat("show", "all", "--json"))
    assert {**shown, "secret": made["secret"]} == made
    assert [shown] == json.loads(pgbeat("list", "--json"))


def test_every_mistake_is_told(database: str, sql: Sql) -> None:
    said = refused(
        run(
            database,
            "webhooks",
            "add",
            "x",
            "--url",
            "http://u:hunter2@169.254.169.254/",
            "--event",
            "job.fail",
            "--event",
            "job.run.skiped",
        )
    )
    assert said.splitlines() == [
        "webhook 'x':",
        "  url: it has a user or a password in it; receivers check the signature instead",
        "  url: 169.254.169.254 is a link-local address, to which webhooks are not sent; the "
        "setting pgbeat_webhook_private allows it",
        "  events: there is no event 'job.fail'; did you mean 'job.failed'?",
        "  events: there is no event 'job.run.skiped'; did you mean 'job.run.skipped'?",
    ]
    assert sql("SELECT 1 FROM pgbeat.webhooks") == []
    assert "Missing option '--url'" in refused(run(database, "webhooks", "add", "x"))
    assert "'add'" in refused(run(database, "webhooks", "ad"))


def test_updated(database: str, pgbeat: Webhooks, sql: Sql) -> None:
    pgbeat("add", "pager", *HOOK)
    [(old,)] = sql("SELECT secret FROM pgbeat.webhooks")
    pgbeat("update", "pager", "--url", "https://example.com/", "--dry-run")
    assert sql("SELECT url FROM pgbeat.webhooks") == [(HOOK[1],)]
    assert pgbeat("update", "pager", "--url", "https://example.com/", "--event", "all") == (
        "Changed webhook 'pager'.\n"
    )
    _, second = pgbeat("update", "pager", "--new-secret").splitlines()
    new = second.removeprefix("Its new secret, which is not shown again: ")
    assert sql("SELECT url, cardinality(events), secret, previous_secret FROM pgbeat.webhooks") == [
        ("https://example.com/", len(EVENTS), new, old)
    ]
    assert "old secret  signs too, until " in pgbeat("show", "pager")
    assert "nothing to change" in refused(run(database, "webhooks", "update", "pager"))
    assert "'pager'" in refused(run(database, "webhooks", "update", "page", "--event", "all"), 1)


def test_there_already(database: str, pgbeat: Webhooks) -> None:
    pgbeat("add", "pager", *HOOK)
    assert "'pager'" in refused(run(database, "webhooks", "add", "pager", *HOOK), 1)


def test_disabled_and_enabled(database: str, pgbeat: Webhooks, sql: Sql) -> None:
    pgbeat("add", "pager", *HOOK)
    happen(sql)
    result = run(database, "webhooks", "disable", "pager", "--reason", "it moves")
    assert result.stdout == "Disabled webhook 'pager'.\n"
    assert result.stderr == "Note: 1 delivery that waited failed.\n"
    assert pgbeat("disable", "pager") == "Webhook 'pager' is disabled already.\n"
    shown = cells(pgbeat("show", "pager"))
    assert ["", "state", "disabled"] in shown
    assert ["", "why", f"disabled by user:{getpass.getuser()}: it moves"] in shown
    result = run(database, "webhooks", "enable", "pager")
    assert result.stdout == "Enabled webhook 'pager'.\n"
    assert result.stderr == (
        "Note: 1 delivery failed; `pgbeat webhooks redeliver --failed pager` sends them again.\n"
    )
    assert pgbeat("enable", "pager") == "Webhook 'pager' is enabled already.\n"


def test_removed(pgbeat: Webhooks, sql: Sql) -> None:
    pgbeat("add", "pager", *HOOK)
    happen(sql)
    assert pgbeat("remove", "pager", "--dry-run") == (
        "Would remove webhook 'pager' and the log of 1 delivery.\n"
    )
    assert "Nothing is removed." in pgbeat("remove", "pager", input="n\n")
    assert len(sql("SELECT 1 FROM pgbeat.deliveries")) == 1
    pgbeat("remove", "pager", "--yes")
    assert sql("SELECT 1 FROM pgbeat.webhooks") == sql("SELECT 1 FROM pgbeat.deliveries") == []


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
        ["webhook", "state", "url", "events", "pending", "failed"],
        ["pager", "failing", HOOK[1], "job.failed", "1", "1"],
    ]


def test_each_app_s_namespace(database: str, pgbeat: Webhooks, app: Celery) -> None:
    pgbeat("add", "pager", *HOOK)
    app.conf.pgbeat_namespace = "other"
    assert run_with(app, "webhooks", "add", "pager", *HOOK).exit_code == 0
    assert [row["namespace"] for row in read(database, "webhooks", "list")] == ["default"]


def test_deliveries(database: str, pgbeat: Webhooks, sql: Sql) -> None:
    pgbeat("add", "pager", *HOOK)
    assert pgbeat("deliveries", "pager") == "There are no deliveries of webhook 'pager'.\n"
    log = [
        {
            "at": "2026-11-21T12:00:01.5+00:00",
            "worker": "w1",
            "status": 503,
            "ms": 12.3,
            "error": "it answered 503 Service Unavailable",
        },
        {"at": "2026-11-21T14:00:06+02:00", "worker": "w1"},
        {"at": "2026-11-21T12:01:00+00:00", "redelivered_by": "user:alice"},
        {"at": "2026-11-21T12:01:01+00:00", "worker": "w2", "status": 200, "ms": 4},
    ]
    key = happen(sql, "delivered", json.dumps(log))
    sql("UPDATE pgbeat.deliveries SET created_at = '2026-11-21 12:00Z'")
    first, *others = cells(pgbeat("deliveries", "pager"))[1:]
    assert first == [
        key,
        "2026-11-21 12:00:00",
        "job.failed",
        "delivered",
        "12:00:01 it answered 503 Service Unavailable, 12 ms",
    ]
    assert [row[-1] for row in others] == [
        "12:00:06 started; its outcome is unknown",
        "12:01:00 requested again by user:alice",
        "12:01:01 200, 4 ms",
    ]
    (row,) = read(database, "webhooks", "deliveries", "pager")
    assert (row["id"], row["state"], row["created_at"]) == (
        key,
        "delivered",
        "2026-11-21T12:00:00Z",
    )
    assert [entry["at"] for entry in row["log"]] == [
        "2026-11-21T12:00:01.500000Z",
        "2026-11-21T12:00:06Z",
        "2026-11-21T12:01:00Z",
        "2026-11-21T12:01:01Z",
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
    one, two, three = (happen(sql, state) for state in ("failed", "delivered", "failed"))

    def pending() -> set[str]:
        return {
            str(key) for (key,) in sql("SELECT id FROM pgbeat.deliveries WHERE state = 'pending'")
        }

    assert pgbeat("redeliver", one, two, "--dry-run") == "2 deliveries are to be tried again.\n"
    assert pending() == set()
    assert pgbeat("redeliver", two[:8]) == "1 delivery is tried again.\n"
    assert pending() == {two}
    assert pgbeat("redeliver", "--failed", "pager") == "2 deliveries are tried again.\n"
    assert pending() == {one, two, three}
    assert pgbeat("redeliver", "--failed", "pager") == "No delivery of webhook 'pager' failed.\n"

    def call(*arguments: str) -> Result:
        return run(database, "webhooks", "redeliver", *arguments)

    assert "--failed NAME" in refused(call())
    assert refused(call(one, "--failed", "pager")) == refused(call())
    assert one in refused(call(one))
    none = str(uuid4())
    assert none in refused(call(none), 1)
    assert "'x'" in refused(call("x"), 1)
    pgbeat_disable = run(database, "webhooks", "disable", "pager")
    assert pgbeat_disable.exit_code == 0
    assert "`pgbeat webhooks enable`" in refused(call(one))


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


def test_tried_where_it_may_not_go(
    database: str, sql: Sql, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://localhost:{receiver.port}/"
    assert run(database, "webhooks", "add", "w", "--url", url, "--event", "all").exit_code == 0
    monkeypatch.delenv("PGBEAT_WEBHOOK_PRIVATE")
    result = run(database, "webhooks", "test", "w")
    assert result.exit_code == 1
    assert "a loopback address: not sent; the setting pgbeat_webhook_private" in result.stdout
    assert receiver.received == []


def test_it_is_said_that_it_is_disabled(
    database: str, pgbeat: Webhooks, receiver: Receiver
) -> None:
    pgbeat("add", "w", "--url", receiver.url(), "--event", "all")
    pgbeat("disable", "w")
    result = run(database, "webhooks", "test", "w")
    assert result.exit_code == 0
    assert "it is disabled; `pgbeat webhooks enable w` enables it" in result.stderr
