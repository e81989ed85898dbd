"""The scheduler on pgbeat's transport: a launch and its message are one transaction there too."""

import json
import signal

import pytest
from celery import Celery

from tests.support import killed_beats
from tests.support.command_line import Sql
from tests.support.processes import Process, until
from tests.support.rows import make_schedule
from tests.support.schedulers import Beat
from tests.support.transport_workers import TransportWorkers, transport_url

#: The messages of tasks: not those of events and remote control.
TASKS = "payload::json -> 'headers' ->> 'id' IS NOT NULL"


@pytest.fixture
def app(app: Celery, database: str) -> Celery:
    app.conf.broker_url = transport_url(database)
    return app


@pytest.fixture
def transport_workers(transport_workers: TransportWorkers, database: str) -> TransportWorkers:
    """Workers, and beats of `tests.support.apps.basic` on the transport."""
    transport_workers.env["CELERY_BROKER_URL"] = transport_url(database)
    return transport_workers


def schedule(sql: Sql, name: str, options: str = "{}", task: str = "transport.note") -> None:
    """A schedule of the task that writes the name down, due now."""
    make_schedule(sql, name, due="0", task=task, args=json.dumps([name]), options=options)


def stop(*processes: Process) -> None:
    """Ends them in order; none has complained."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        assert process.wait(30) == 0, process.output
        assert "Traceback" not in process.output


def message_ids(sql: Sql) -> list[str]:
    rows = sql(f"SELECT payload::json -> 'headers' ->> 'id' FROM kombu_message WHERE {TASKS}")
    return sorted(str(row[0]) for row in rows)


def launched(sql: Sql) -> list[str]:
    """The ids of all launches; ticks and jobs are the same set, each once."""
    ids = [str(row[0]) for row in sql("SELECT job_id FROM pgbeat.ticks ORDER BY 1")]
    assert len(set(ids)) == len(ids)
    assert [str(row[0]) for row in sql("SELECT id FROM pgbeat.jobs ORDER BY 1")] == ids
    assert sql("SELECT DISTINCT outcome, error FROM pgbeat.ticks") == [("launched", None)]
    return ids


@pytest.mark.parametrize(
    "step",
    [
        step if step == "before commit" else pytest.param(step, marks=pytest.mark.slow)
        for step in killed_beats.STEPS
    ],
)
def test_killed_at_each_step(
    transport_workers: TransportWorkers, beat: Beat, sql: Sql, step: str
) -> None:
    """Three times each: the leader dies by SIGKILL at the step, another beat takes over."""
    for n in range(6):
        options = '{"countdown": 3600}' if n % 2 else "{}"
        schedule(sql, f"s{n}", options, task="tests.add")
    sql("UPDATE pgbeat.schedules SET next_run = now() + interval '1 hour'")
    with killed_beats.opened(transport_workers.env, step) as kill_one:
        for n in range(1, 4):
            killed_beats.take_over(sql, kill_one, beat)
            assert sql("SELECT count(*), count(DISTINCT due_at) FROM pgbeat.ticks") == [(6 * n, n)]
        assert message_ids(sql) == launched(sql)
        assert transport_workers.count(f"visible AND {TASKS}") == 9
        assert transport_workers.count("available_at > now() + interval '50 minutes'") == 9


@pytest.mark.slow
def test_beat_answers_a_ping(transport_workers: TransportWorkers) -> None:
    """`beat --enable-remote-control`: what liveness probes ask."""
    beat = transport_workers.beat("--enable-remote-control", "-n", "celerybeat@probed")
    name = "celerybeat@probed"
    until(
        lambda: transport_workers.app.control.inspect(timeout=0.5).ping() == {name: {"ok": "pong"}}
    )
    inspect = transport_workers.app.control.inspect(destination=[name], timeout=15)
    for _ in range(3):
        assert inspect.ping() == {name: {"ok": "pong"}}
    stop(beat)
