"""The quick start of the documentation: its own commands, with a real beat and worker."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import Sql
from tests.support.processes import Processes, until
from tests.support.rows import make_schedule
from tests.support.webhook_receiver import Receiver

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "webhooks.md"
APP = "tests.support.apps.webhooks"


def commands(url: str) -> list[list[str]]:
    """Returns the commands of the page, for the tests' app and a receiver that is here."""
    _, _, section = PAGE.read_text().partition("## Tell me in Slack when a nightly job fails\n")
    block = section.split("```")[1].replace("\\\n", " ")
    block = re.sub(r"https://hooks\.slack\.com/\S+", url, block).replace("-A shop", f"-A {APP}")
    return [shlex.split(line)[2:] for line in block.splitlines() if line]


@pytest.mark.process
def test_slack_is_told_of_a_nightly_job_that_fails_and_of_its_recovery(
    processes: Processes, sql: Sql, receiver: Receiver
) -> None:
    make_schedule(sql, "nightly-report", cron="0 3 * * *", task="tests.fail")
    processes.env["PGBEAT_WEBHOOK_PRIVATE"] = "1"
    processes.beat(app=APP).says("This beat leads")
    processes.worker(app=APP).says("ready.")
    add, test, trigger = commands(receiver.url("/services/T0/B0/x"))

    def call(command: list[str]) -> None:
        pgbeat = [sys.executable, "-m", "pgbeat", *command]
        subprocess.run(pgbeat, env=processes.env, check=True, timeout=60)

    def texts() -> list[str]:
        return [request.json["text"] for request in receiver.received]

    call(add)
    call(test)
    said = ["A test of webhook 'room'"]
    assert texts() == said
    for _ in range(2):
        call(trigger)
    said.append("Schedule 'nightly-report' failed")
    until(lambda: texts() == said)
    until(lambda: sql("SELECT failures, alerts FROM pgbeat.incidents") == [(2, 1)])
    assert "no such thing" in receiver.received[1].json["blocks"][0]["text"]["text"]
    sql("UPDATE pgbeat.schedules SET task = 'tests.add', args = '[1, 2]'")
    call(trigger)
    said.append("Schedule 'nightly-report' recovered")
    until(lambda: texts() == said)
    assert sql("SELECT count(*) FROM pgbeat.incidents") == [(0,)]
