"""Plain tasks that workers record: nobody takes their messages, which name no job, for lost."""

import pytest

from pgbeat.broker.publishing.publisher import TransactionPublisher
from pgbeat.jobs.rescuing import missing_messages
from pgbeat.jobs.rescuing.missing_messages import MissingMessages
from tests.support.command_line import run_with
from tests.support.processes import until
from tests.support.recorded_workers import TrackedWorkers
from tests.support.simulated_workers import FakeWorkers


def test_one_that_waits_for_its_retry_is_not_lost(
    tracked_workers: TrackedWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked_workers.start("-P", "solo", settings={"pgbeat_track": "all"})
    tracked_workers.app.send_task("tests.retry", kwargs={"countdown": 3600})
    until(lambda: tracked_workers.states() == {"scheduled": 1})
    tracked_workers.sql(
        "UPDATE pgbeat.jobs SET dispatched_at = dispatched_at - interval '1 minute', "
        "elsewhere_at = elsewhere_at - interval '1 minute'"
    )
    monkeypatch.setattr(missing_messages, "_GONE", 0.0)
    looks, rescuer = MissingMessages("default"), FakeWorkers(tracked_workers.database)
    assert isinstance(rescuer.publisher, TransactionPublisher)
    try:
        for _ in range(3):
            looks.rescue(rescuer.connection, rescuer.publisher, [])
    finally:
        rescuer.close()
    assert tracked_workers.states() == {"scheduled": 1}


def test_one_whose_worker_dies_runs_again(tracked_workers: TrackedWorkers) -> None:
    late = {"pgbeat_track": "all", "task_acks_late": True}
    worker = tracked_workers.start("-P", "solo", settings=late)
    sent = str(tracked_workers.app.send_task("tests.hold", ("open",)).id)
    until(lambda: tracked_workers.states() == {"running": 1})
    worker.kill_group()
    rescuer = FakeWorkers(tracked_workers.database)
    try:
        until(lambda: rescuer.rescue() or tracked_workers.states() == {"pending": 1}, 60)
    finally:
        rescuer.close()
    tracked_workers.open("open")
    tracked_workers.start("-P", "solo", settings=late)
    [seen] = tracked_workers.ended(sent, seconds=60)
    assert seen.job.state == "completed"
    assert [(run.state, run.lost) for run in seen.runs] == [("failed", True), ("completed", False)]


@pytest.mark.parametrize("task", ["retry", "snooze"])
@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_one_that_is_dropped_while_it_waits_for_its_retry(
    tracked_workers: TrackedWorkers, how: str, task: str
) -> None:
    """Celery acknowledges its message without running it again."""
    tracked_workers.start("-P", "solo", settings={"pgbeat_track": "all"})
    options = {"expires": 2} if how == "expired" else {}
    sent = tracked_workers.app.send_task(f"tests.{task}", kwargs={"countdown": 3}, **options)
    until(lambda: tracked_workers.states() == {"scheduled": 1})
    if how == "revoked":
        tracked_workers.app.control.revoke(sent.id)
    until(lambda: tracked_workers.states() == {"cancelled": 1}, 30)
    [seen] = tracked_workers.ended(str(sent.id))
    assert (seen.job.error, len(seen.runs)) == (how, 1)


def test_one_that_others_replace_has_one_job(tracked_workers: TrackedWorkers) -> None:
    """The last of them has its id."""
    tracked_workers.start("-P", "solo", settings={"pgbeat_track": "all"})
    sent = str(tracked_workers.app.send_task("tests.replace").id)
    of_job = "SELECT FROM pgbeat.ended_executions WHERE job_id = %s"
    until(lambda: len(tracked_workers.sql(of_job, sent)) == 2, 30)
    assert tracked_workers.see(sent).job.task == "tests.replace"


def test_one_that_changes_its_arguments(tracked_workers: TrackedWorkers) -> None:
    """Its job has those that were sent, and so does a retry by hand."""
    tracked_workers.start("-P", "solo", settings={"pgbeat_track": "all"})
    orders = [{"id": number} for number in range(20)]
    sent = [str(tracked_workers.app.send_task("tests.empty", (order,)).id) for order in orders]
    until(lambda: tracked_workers.states() == {"failed": 20})
    assert [tracked_workers.see(job_id).job.args for job_id in sent] == [[o] for o in orders]
    again = run_with(tracked_workers.app, "jobs", "retry", sent[7], "--admin")
    assert again.exit_code == 0, again.output
    retries = "SELECT args FROM pgbeat.jobs WHERE retry_of = %s"
    assert tracked_workers.sql(retries, sent[7]) == [([{"id": 7}],)]
