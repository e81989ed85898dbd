"""The checks find each promise that a forged record breaks, and none in one that is not forged."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from celery.exceptions import ChordError

from tests.chaos import promises
from tests.chaos.check import main, restored
from tests.chaos.record import Canvas, Fault, Line, Promised, Record
from tests.chaos.test_chaos import made, pytestmark

__all__ = ["pytestmark"]

_ONE = "(SELECT id FROM pgbeat.jobs WHERE state = 'completed' AND NOT keeps_id LIMIT 1)"
_TWO = "IN (SELECT id FROM pgbeat.jobs WHERE state = 'completed' LIMIT 2)"
#: Makes two ended jobs unfinished ones, with values of which the last is wanted.
_UNFINISHED = f"""
    WITH ended AS (DELETE FROM pgbeat.jobs WHERE id {_TWO} RETURNING *)
    INSERT INTO pgbeat.unfinished_jobs
    SELECT (jsonb_populate_record(NULL::pgbeat.unfinished_jobs, to_jsonb(ended)
            || '{{"state": "running", "finished_at": null, "dispatched_at": "now"}}' || %s)).*
      FROM ended"""
_TICK = "(schedule_id, schedule, due_at, outcome, job_id)"
#: Statements that break a promise, where no trigger or foreign key keeps them from it.
_SQL = {
    "a due time that no tick accounts for": """
        DELETE FROM pgbeat.ticks WHERE id = (SELECT id FROM pgbeat.ticks WHERE schedule = 'plain1'
            AND trigger = 'timetable' ORDER BY due_at OFFSET 1 LIMIT 1)""",
    "a launched tick without its job": """
        DELETE FROM pgbeat.jobs WHERE id =
            (SELECT job_id FROM pgbeat.ticks WHERE job_id IS NOT NULL LIMIT 1)""",
    "a schedule's job without its tick": """
        DELETE FROM pgbeat.ticks WHERE id =
            (SELECT id FROM pgbeat.ticks WHERE job_id IS NOT NULL LIMIT 1)""",
    "one job of two ticks": f"""
        UPDATE pgbeat.ticks SET job_id = {_ONE} WHERE outcome = 'launched'""",
    "jobs of one tick without a run key of their own": """
        UPDATE pgbeat.jobs SET run_key = 'a' WHERE run_key IS NOT NULL""",
    "a failed tick": """
        INSERT INTO pgbeat.ticks (schedule_id, schedule, due_at, outcome, error)
        SELECT id, name, now(), 'failed', 'x' FROM pgbeat.schedules WHERE name = 'plain1'""",
    "a disabled schedule": "UPDATE pgbeat.schedules SET enabled = false WHERE name = 'plain1'",
    "a failed attempt with two retries": f"""
        UPDATE pgbeat.jobs SET retry_of = '{uuid4()}', attempt = 2 WHERE id {_TWO}""",
    "an attempt too many": f"UPDATE pgbeat.jobs SET attempt = 9 WHERE id = {_ONE}",
    "a failed job that was not tried again": f"""
        UPDATE pgbeat.jobs SET state = 'failed', attempt = 1, max_attempts = 2, retried_by = NULL
         WHERE id = {_ONE}""",
    "two unfinished jobs of one key": "DROP INDEX pgbeat.unfinished_jobs_one_of_key;"
    + _UNFINISHED % '\'{"task": "t", "unique_key": "k"}\'',
    "a lane with more slots in use than it has": _UNFINISHED % '\'{"lane": "one"}\'',
    "a due time that is excluded": f"""
        INSERT INTO pgbeat.ticks {_TICK}
        SELECT id, name, date_trunc('hour', now()), 'launched', {_ONE} FROM pgbeat.schedules
         WHERE name = 'calendar'""",
    "more launches than allowed": "UPDATE pgbeat.schedules SET max_runs = 1 WHERE name = 'plain1'",
    "one time with two ticks": f"""
        INSERT INTO pgbeat.ticks {_TICK}
        SELECT 0, 'once', now() - i * interval '1 s', 'launched', {_ONE}
          FROM generate_series(1, 2) AS i""",
    "a job that has not ended": _UNFINISHED % "'{}'",
    "an execution that has not ended": f"""
        UPDATE pgbeat.executions SET state = 'running', finished_at = NULL WHERE job_id = {_ONE}""",
    "a message that is left": """
        INSERT INTO kombu_message (queue_id, payload)
        SELECT id, '{}' FROM kombu_queue WHERE name = 'celery'""",
    "a claim of a consumer that is gone": """
        INSERT INTO kombu_message (queue_id, payload, claimed_by)
        SELECT id, '{}', 999999999 FROM kombu_queue WHERE name = 'celery'""",
    "ends of jobs that no tick of `after` accounts for": """
        DELETE FROM pgbeat.ticks WHERE schedule = 'after1'""",
    "one time without its tick": """
        INSERT INTO pgbeat.schedules (name, task, once_at) VALUES ('x', 't', now())""",
    "a job whose task's result says something else": """
        UPDATE pgbeat.results SET status = 'FAILURE' WHERE status = 'SUCCESS'""",
    "a completed job whose row is not there once, or another's that is": """
        INSERT INTO booked SELECT task FROM booked LIMIT 1""",
    "a chord that did not end": "UPDATE pgbeat.chords SET ended = false, size = 2",
    "a part of a chord that is left": f"""
        INSERT INTO pgbeat.chord_parts
        VALUES ('{uuid4()}', 0, '{uuid4()}', 'SUCCESS', NULL, '', '')""",
}
#: Promises that were never given.
_PROMISED: dict[str, Callable[[Promised], object]] = {
    "a schedule that is not there": lambda given: given.once.add("x"),
    "a submitted job that is not there": lambda given: given.jobs.update({str(uuid4()): {}}),
    "a committed task that never ran": lambda given: given.committed.add(str(uuid4())),
    "a task that was rolled back and ran": lambda given: given.rolled_back.update(given.committed),
    "a unique task that is not there": lambda given: given.unique.add(str(uuid4())),
    "a canvas that did not end": lambda given: given.canvases.append(
        Canvas("chain", [str(uuid4())], 1, [])
    ),
}


def _canvases(record: Record) -> dict[str, Canvas]:
    """Canvases that break a promise, of tasks that there are."""
    query = "SELECT state, min(id::text) FROM pgbeat.jobs WHERE keeps_id GROUP BY 1"
    ended = dict(record.sql(query))
    completed, chordless = ended["completed"], str(uuid4())
    value = record.app.AsyncResult(completed).result
    record.app.backend.store_result(chordless, ChordError("x"), "FAILURE")
    return {
        "a canvas with another value": Canvas("chain", [completed], value + 1, []),
        "a canvas that completed without a part": Canvas(
            "chain", [ended["failed"], completed], value, []
        ),
        "a canvas that failed though its parts completed": Canvas(
            "chord", [completed, chordless], 2, []
        ),
        "a callback that did not end": Canvas("callback", [completed], value, [str(uuid4())]),
    }


def _journals(record: Record) -> dict[str, list[Line]]:
    """Journals that break a promise, long after the last fault."""
    [completed, other] = [
        job for (job,) in record.sql(f"SELECT id::text FROM pgbeat.jobs WHERE id {_TWO}")
    ]
    line = Line("start", completed, time.time() + 1000, 1, "x@chaos", "chaos.work")
    return {
        "a job that completed without having run to its end": [
            each for each in record.journal if each.phase != "end"
        ],
        "a task that was started again without a fault": [line, replace(line, at=line.at + 1)],
        "a lane with more jobs at work than its limit": [line, replace(line, id=other)],
    }


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    """What a short run left."""
    folder = tmp_path_factory.mktemp("run")
    assert made(folder, 0.35, "--only", "cancel_statement") == (0, [])
    with restored(folder) as restored_record:
        yield restored_record


@pytest.mark.timeout(600)
def test_forged_records(record: Record, tmp_path: Path) -> None:
    found = promises.check(record)
    assert not any(found.values())
    missed = set(found)
    for name, forged in _forged(record, tmp_path):
        assert promises.check(forged)[name], name
        missed.remove(name)
    assert not missed


def _forged(record: Record, folder: Path) -> Iterator[tuple[str, Record]]:
    """A forged record for each promise."""
    for name, statement in _SQL.items():
        record.sql("BEGIN")
        record.sql("SET LOCAL session_replication_role = replica")
        record.sql(statement)
        yield name, record
        record.sql("ROLLBACK")
    for name, change in _PROMISED.items():
        forged = Record(record.folder, record.sql, record.app)
        change(forged.promised)
        yield name, forged
    for name, canvas in _canvases(record).items():
        forged = Record(record.folder, record.sql, record.app)
        forged.promised.canvases.append(canvas)
        yield name, forged
    for name, lines in _journals(record).items():
        forged = Record(record.folder, record.sql, record.app)
        forged.journal = [*([] if len(lines) > 2 else record.journal), *lines]
        record.sql("BEGIN")
        record.sql("SET LOCAL session_replication_role = replica")
        record.sql(
            f"UPDATE pgbeat.jobs SET lane = 'one', finished_at = now() + '1 h' WHERE id {_TWO}"
        )
        yield name, forged
        record.sql("ROLLBACK")
    forged = Record(record.folder, record.sql, record.app)
    forged.faults = [*record.faults, Fault("ended by itself", "beat0", 0, 0)]
    yield "a process that ended by itself", forged
    (folder / "postgres-1.log").write_text("ERROR:  deadlock detected\n")
    forged = Record(folder, record.sql, record.app)
    forged.promised, forged.rounds = record.promised, record.rounds
    forged.faults, forged.journal = record.faults, record.journal
    yield "a deadlock", forged


def test_a_run_that_did_not_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "the run must have come to its end" in capsys.readouterr().err
