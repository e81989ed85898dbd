"""`pgbeat sync` and `export` of lanes, templates and webhooks."""

import json

import pytest
from celery import Celery

from tests.integration.cli.conftest import Write
from tests.support.command_line import Sql, run, run_with
from tests.support.roles import with_profile
from tests.support.rows import make_incident, make_lane, make_schedule, make_webhook

TEXT = """\
calendars: {office: {weekdays: [sat, sun]}}
lanes: {gpu: {max_running: 2, rate: 10/minute}}
templates: {resize: {task: tests.add, job_policy: {lane: gpu}}}
schedules: {nightly: {cron: 0 2 * * *, job_policy: {template: resize}}}
webhooks: {pager: {url: 'https://a.b/', events: [job.failed]}}
"""
NOT_CHECKED = "Note: tasks and launchers are not checked; with -A APP they would be.\n"


def test_a_plan_of_everything(database: str, write: Write, sql: Sql) -> None:
    planned = run(database, "sync", write(TEXT), "--plan")
    assert planned.exit_code == 3
    assert planned.stdout == (
        "Plan for schedules.yaml (namespace 'default'):\n"
        '  + calendar office: weekdays ["sat", "sun"]\n'
        "  + lane gpu: max_running 2, rate 10/minute\n"
        '  + template resize: task tests.add, job_policy {"lane": "gpu"}\n'
        '  + webhook pager: url https://a.b/, events ["job.failed"]\n'
        "  + nightly: template resize, cron 0 2 * * *\n"
        "5 to add; 0 unchanged.\n"
    )
    for table in ("calendars", "lanes", "templates", "webhooks", "schedules"):
        assert sql(f"SELECT * FROM pgbeat.{table}") == []


def test_all_of_it_is_one_transaction_in_the_audit(database: str, write: Write, sql: Sql) -> None:
    done = run(database, "sync", write(TEXT))
    assert done.stdout.endswith("\n5 added; 0 unchanged.\n")
    assert done.stderr == (
        "Note: webhook 'pager' gets a random secret; `pgbeat webhooks update pager --new-secret` "
        "makes one that it shows.\n" + NOT_CHECKED
    )
    assert sql("SELECT verb, kind, subject FROM pgbeat.audit ORDER BY id") == [
        ("create", "calendar", "office"),
        ("create", "lane", "gpu"),
        ("create", "template", "resize"),
        ("create", "webhook", "pager"),
        ("create", "schedule", "nightly"),
    ]
    assert sql("SELECT count(DISTINCT xmin::text) FROM pgbeat.audit") == [(1,)]
    again = run(database, "sync", "schedules.yaml", "--plan")
    assert (again.exit_code, again.stdout) == (
        0,
        "Nothing to do: 1 schedule, 1 calendar, 1 lane, 1 template, 1 webhook are as the file "
        "says.\n",
    )


def test_drift_and_what_the_file_lacks(database: str, write: Write, sql: Sql) -> None:
    run(database, "sync", write(TEXT + "x-one: {}\n"))
    run(database, "lanes", "set", "gpu", "--limit", "9")
    make_webhook(sql, "mine")
    path = write(TEXT.replace("pager:", "mine:").replace("rate: 10/", "rate: 20/"))
    changed = run(database, "sync", path, "--plan")
    assert changed.exit_code == 3
    assert changed.stdout.splitlines()[1:] == [
        "  ~ lane gpu",
        "        max_running: 9 → 2 (drift: the last sync wrote 2)",
        "        rate: 10/minute → 20/minute",
        "1 to change, 1 of which had drifted; 3 unchanged.",
    ]
    assert changed.stderr == (
        "Note: not in the file, and kept: webhook pager; --prune removes them.\n"
        "Note: made elsewhere, and left alone: webhook mine; --adopt takes them over.\n"
        + NOT_CHECKED
    )
    for (webhook,) in sql("SELECT id FROM pgbeat.webhooks"):
        make_incident(sql, webhook)
    done = run(database, "sync", path, "--prune", "--adopt")
    for name in ("mine", "pager"):
        assert f"webhook '{name}': without telling its receiver of the end of 1" in done.stderr
    assert done.stdout.splitlines()[1:] == [
        "  ~ lane gpu",
        "        max_running: 9 → 2 (drift: the last sync wrote 2)",
        "        rate: 10/minute → 20/minute",
        "  ~ webhook mine (made by hand, the file's from now on)",
        "        url: https://example.com → https://a.b/",
        "  - webhook pager",
        "1 changed, 1 removed, 1 adopted, 1 of which had drifted; 3 unchanged.",
    ]
    assert sql("SELECT name FROM pgbeat.webhooks") == [("mine",)]


def test_the_plan_in_json(database: str, write: Write, sql: Sql) -> None:
    make_webhook(sql, "pager")
    planned = json.loads(run(database, "sync", write(TEXT), "--plan", "--json").stdout)
    fields = {"add", "change", "remove", "adopt", "kept", "taken", "unchanged"}
    sections = ("calendars", "lanes", "templates", "webhooks")
    assert all(planned[section].keys() == fields for section in sections)
    assert planned["lanes"]["add"] == {"gpu": {"max_running": 2, "rate": "10/minute"}}
    assert planned["webhooks"]["taken"] == {"pager": None}
    run(database, "sync", "schedules.yaml")
    run(database, "lanes", "set", "gpu", "--limit", "9")
    planned = json.loads(run(database, "sync", "schedules.yaml", "--plan", "--json").stdout)
    assert planned["lanes"]["change"] == {
        "gpu": {"max_running": {"old": 9, "new": 2, "drift": True, "last_sync": 2}}
    }
    assert planned["changes"] is True


def test_secrets_come_from_the_environment_and_are_never_shown(
    database: str, write: Write, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("""\
webhooks:
  pager: {url: 'https://a.b/', events: [all], secret_env: PAGER_SECRET}
  room: {url_env: ROOM_URL, events: [all], format: slack}
""")
    missing = run(database, "sync", path)
    assert missing.exit_code == 2
    said = "schedules.yaml:2:59: webhook 'pager': secret_env: the environment has no PAGER_SECRET"
    assert said in missing.stderr
    secrets = {"PAGER_SECRET": "whsec_" + "A" * 40, "ROOM_URL": "https://hooks.slack.com/secret"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    shown = [run(database, "sync", path, "--json"), run(database, "export")]
    assert sql("SELECT url FROM pgbeat.webhooks WHERE name = 'room'") == [(secrets["ROOM_URL"],)]
    assert (
        shown[1].stdout
        == """\
schedules: {}

webhooks:
  pager:
    url: https://a.b/
    events: [all]
    secret_env: PAGER_SECRET

  room:
    url_env: ROOM_URL
    events: [all]
    format: slack
"""
    )
    monkeypatch.setenv("ROOM_URL", "https://hooks.slack.com/other")
    shown.append(run(database, "sync", path, "--plan"))
    assert "url_env: (another value) → ROOM_URL\n" in shown[2].stdout
    monkeypatch.delenv("ROOM_URL")
    shown.append(run(database, "sync", path))
    assert "webhook 'room' keeps its own; the environment has no ROOM_URL" in shown[3].stderr
    for result in shown:
        assert not any(secret in result.output for secret in secrets.values())


def test_an_export_of_all_and_of_some(database: str, write: Write, sql: Sql) -> None:
    run(database, "sync", write(TEXT))
    make_lane(sql, "cpu", None)
    make_schedule(sql, name="plain")
    everything = run(database, "export").stdout
    assert (
        everything
        == """\
calendars:
  office:
    weekdays: [sat, sun]

lanes:
  cpu:
    max_running: null

  gpu:
    max_running: 2
    rate: 10/minute

templates:
  resize:
    task: tests.add
    job_policy:
      lane: gpu

schedules:
  nightly:
    task: tests.add
    cron: 0 2 * * *
    job_policy:
      template: resize

  plain:
    task: tests.add
    every: 1 hour

webhooks:
  pager:
    url: https://a.b/
    events: [job.failed]
"""
    )
    some = json.loads(run(database, "export", "nightly", "--format", "json").stdout)
    assert list(some) == ["lanes", "templates", "schedules"]
    assert list(some["lanes"]) == ["gpu"]
    assert list(json.loads(run(database, "export", "plain", "--format", "json").stdout)) == [
        "schedules"
    ]
    assert run(database, "sync", write(everything), "--adopt").exit_code == 0
    assert run(database, "sync", "schedules.yaml", "--plan").exit_code == 0


def test_a_role_that_may_not_read_webhooks_exports_the_rest(
    database: str, write: Write, sql: Sql
) -> None:
    run(database, "sync", write(TEXT))
    with with_profile(database, "readonly") as role:
        exported = run(role.dsn, "export", "--format", "json")
        assert "webhooks" not in json.loads(exported.stdout)
        assert exported.stderr == (
            "Note: left out: webhooks, which this role of the database can't read.\n"
        )
        lanes = write(TEXT[: TEXT.index("webhooks")])
        assert run(role.dsn, "sync", lanes, "--plan").exit_code == 0
        denied = run(role.dsn, "sync", write(TEXT), "--plan")
        assert denied.exit_code == 1 and "permission denied" in denied.stderr


def test_the_app_knows_tasks_and_policies(app: Celery, write: Write) -> None:
    refused = run_with(
        app,
        "sync",
        write("templates: {t: {task: tests.ad}}\nlanes: {a: {policy: tag}}\nschedules: {}"),
    )
    assert refused.exit_code == 2
    assert "schedules.yaml:1:23: template 't': " in refused.stderr
    assert "schedules.yaml:2:21: lane 'a': " in refused.stderr


def test_nothing_is_half_written(database: str, write: Write, sql: Sql) -> None:
    sql("ALTER TABLE pgbeat.schedules ADD CHECK (name <> 'nightly')")
    refused = run(database, "sync", write(TEXT))
    assert refused.exit_code == 2
    for table in ("calendars", "lanes", "templates", "webhooks", "audit"):
        assert sql(f"SELECT * FROM pgbeat.{table}") == []
