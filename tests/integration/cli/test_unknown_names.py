"""What a user learns of a name that nothing has: the nearest one, and what lists them all."""

import re

from celery import Celery

from tests.support.command_line import Sql, refused, run, run_with
from tests.support.databases import sqlalchemy_url
from tests.support.rows import make_calendar, make_lane, make_schedule, make_template, make_webhook

#: By noun: commands that name one.
COMMANDS = {
    "schedule": (
        *("status {}", "trigger {}", "history {}", "explain {}", "check {}"),
        "jobs list --schedule {}",
    ),
    "calendar": ("calendars check {}", "add s --task tests.add --every 1h --calendar {}"),
    "lane": (
        "lanes pause {}",
        "jobs run tests.add --lane {}",
        "templates set t --task tests.add --lane {}",
    ),
    "template": ("templates show {}", "jobs run --template {}", "add s --template {} --every 1h"),
    "queue": ("queues pause {}", "dead requeue --queue {}"),
    "webhook": ("webhooks enable {}", "webhooks deliveries {}", "webhooks incidents {}"),
    "living worker": ("workers shutdown {} --yes",),
    "token": ("tokens revoke {}",),
}
CASES = [(noun, command) for noun, commands in COMMANDS.items() for command in commands]


def test_the_command_that_lists_them_is_named(app: Celery, database: str) -> None:
    app.conf.broker_url = f"pgbeat+{sqlalchemy_url(database)}"
    for noun, command in CASES:
        said = _refused(app, command.format("nigtly"))
        found = re.search(rf"there is no {noun} 'nigtly'; `pgbeat (.*)` shows all {noun}s", said)
        assert found is not None, (command, said)
        assert run(database, *found[1].split()).exit_code == 0


def test_the_nearest_is_named(app: Celery, database: str, sql: Sql) -> None:
    app.conf.broker_url = f"pgbeat+{sqlalchemy_url(database)}"
    make_schedule(sql, "nightly")
    make_lane(sql, "nightly")
    make_calendar(sql, "nightly")
    make_template(sql, "nightly")
    app.send_task("tests.add", queue="nightly")
    make_webhook(sql, "nightly")
    for noun, command in CASES:
        if noun not in ("living worker", "token"):
            said = _refused(app, command.format("nigtly"))
            assert f"there is no {noun} 'nigtly'; did you mean 'nightly'? `pgbeat " in said, command


def _refused(app: Celery, command: str) -> str:
    result = run_with(app, *command.split())
    return refused(result, result.exit_code or 1)
