"""What a user learns of a name that nothing has: the nearest one, and what lists them all."""

import re

import pytest
from celery import Celery

from tests.support.command_line import Sql, refused, run, run_with
from tests.support.databases import sqlalchemy_url
from tests.support.rows import make_lane, make_schedule

#: By noun: commands that name one.
COMMANDS = {
    "schedule": ("status {}", "trigger {}", "history {}", "explain {}", "jobs list --schedule {}"),
    "calendar": ("calendars check {}", "add s --task tests.add --every 1h --calendar {}"),
    "lane": (
        "lanes pause {}",
        "jobs run tests.add --lane {}",
        "templates set t --task tests.add --lane {}",
    ),
    "template": ("templates show {}", "jobs run --template {}", "add s --template {} --every 1h"),
    "queue": ("queues pause {}", "dead requeue --queue {}"),
    "webhook": ("webhooks enable {}", "webhooks deliveries {}"),
    "living worker": ("workers shutdown {} --yes",),
    "token": ("tokens revoke {}",),
}
CASES = [(noun, command) for noun, commands in COMMANDS.items() for command in commands]


@pytest.mark.parametrize(("noun", "command"), CASES)
def test_the_command_that_lists_them_is_named(
    app: Celery, database: str, noun: str, command: str
) -> None:
    app.conf.broker_url = f"pgbeat+{sqlalchemy_url(database)}"
    said = _refused(app, command.format("nigtly"))
    found = re.search(rf"there is no {noun} 'nigtly'; `pgbeat (.*)` shows all {noun}s", said)
    assert found is not None, said
    assert run(database, *found[1].split()).exit_code == 0


@pytest.mark.parametrize(
    ("noun", "command"), [case for case in CASES if case[0] not in ("living worker", "token")]
)
def test_the_nearest_is_named(
    app: Celery, database: str, sql: Sql, noun: str, command: str
) -> None:
    app.conf.broker_url = f"pgbeat+{sqlalchemy_url(database)}"
    make_schedule(sql, "nightly")
    make_lane(sql, "nightly")
    sql("INSERT INTO pgbeat.calendars (name, definition) VALUES ('nightly', '{}')")
    sql("INSERT INTO pgbeat.templates (name, task) VALUES ('nightly', 'tests.add')")
    app.send_task("tests.add", queue="nightly")
    sql(
        "INSERT INTO pgbeat.webhooks (name, url, events, secret) "
        "VALUES ('nightly', 'https://example.org', '{job.failed}', 'whsec_' || repeat('x', 32))"
    )
    said = _refused(app, command.format("nigtly"))
    assert f"there is no {noun} 'nigtly'; did you mean 'nightly'? `pgbeat " in said


def _refused(app: Celery, command: str) -> str:
    result = run_with(app, *command.split())
    return refused(result, result.exit_code or 1)
