"""What must hold after a round: the promises of `docs/concepts/guarantees.md`.

Each check returns what breaks each promise. A second start of a job, or two jobs at once in a lane
of one, is excused if a fault hit the worker at the time: the promise says so.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

from tests.chaos import app as chaos_app
from tests.chaos import canvases
from tests.chaos.load import LANES
from tests.chaos.record import Fault, Line, Record

#: Seconds before a start in which a fault of its worker still matters, and after it.
_BEFORE, _AFTER = 15.0, 5.0


def check(record: Record) -> dict[str, list[str]]:
    """Returns what breaks each promise; nothing must, once all has finished."""
    ends = Counter(line.id for line in record.journal if line.phase == "end")
    queries = (*_NEVER.items(), *_NOT_AFTERWARDS.items())
    # Due times count within a round, since none is missed while the schedules are paused.
    rounds = zip(record.rounds, [*record.rounds[1:], None], strict=True)
    return {
        "a due time that no tick accounts for": [
            row for each in rounds for row in record.rows(_UNACCOUNTED, *each)
        ],
        **{name: record.rows(query) for name, query in queries},
        **_kept(record),
        "a job that completed without having run to its end": _not_ended(record, ends),
        "a task that was started again without a fault": _repeated(record, ends),
        "a lane with more jobs at work than its limit": _crowded(record),
        "a deadlock": record.deadlocks,
        "a process that ended by itself": _exited(record),
        **canvases.check(record, ends, _unsure(record)),
    }


def check_meanwhile(record: Record) -> dict[str, list[str]]:
    """Returns what breaks a promise at the moment, whatever is going on."""
    return {name: record.rows(query) for name, query in _NEVER.items()}


def broken(found: dict[str, list[str]]) -> list[str]:
    """Each thing that breaks a promise, with the promise."""
    return [f"{name}: {each}" for name, rows in found.items() for each in rows]


def _unsure(record: Record) -> set[str]:
    """Returns the tasks that ran while a server was left behind.

    `docs/how-to/failover.md`: what was committed there is on no other. So results may be, which
    commit asynchronously; those of `finish` don't.
    """
    windows = [(f.began, f.ended) for f in record.faults if f.kind.startswith("standby promoted")]
    return {
        line.id for line in record.journal if any(began <= line.at <= end for began, end in windows)
    }


#: Schedules whose due times and ticks, with those that the ticks say were missed, differ in number.
_UNACCOUNTED = """
    SELECT s.name, min(t.due_at), max(t.due_at), count(*), sum(missed)
      FROM pgbeat.schedules s JOIN pgbeat.ticks t ON t.schedule_id = s.id,
           coalesce(extract(epoch FROM s.every), (s.labels ->> 'period')::numeric) AS period
     WHERE t.trigger = 'timetable' AND s.name ~ '^(plain|all|lane|cron|rrule|jitter|several)'
       AND t.due_at > to_timestamp(%s) AND t.due_at < coalesce(to_timestamp(%s), 'infinity')
     GROUP BY s.name, period
    HAVING round(extract(epoch FROM max(t.due_at) - min(t.due_at)) / period) + 1
           <> count(*) + sum(missed) - (array_agg(missed ORDER BY t.due_at))[1]
"""
#: Queries that must return no row at any time.
_NEVER = {
    "a launched tick without its job": """
        SELECT t.schedule, t.due_at
          FROM pgbeat.ticks t, unnest(t.job_id || t.more_job_ids) AS launched (id)
               LEFT JOIN pgbeat.jobs j ON j.id = launched.id
         WHERE t.outcome = 'launched' AND j.id IS NULL""",
    "a schedule's job without its tick": """
        SELECT j.schedule, j.id
          FROM pgbeat.jobs j
               LEFT JOIN (SELECT launched.id FROM pgbeat.ticks t,
                                 unnest(t.job_id || t.more_job_ids) AS launched (id)
                           WHERE t.outcome = 'launched') AS l ON l.id = j.id
         WHERE j.schedule IS NOT NULL AND j.retry_of IS NULL AND l.id IS NULL""",
    "one job of two ticks": """
        SELECT launched.id
          FROM pgbeat.ticks t, unnest(t.job_id || t.more_job_ids) AS launched (id)
         WHERE t.outcome = 'launched' GROUP BY 1 HAVING count(*) > 1""",
    "jobs of one tick without a run key of their own": """
        SELECT t.schedule, t.due_at
          FROM pgbeat.ticks t JOIN pgbeat.jobs j ON j.id = ANY (t.job_id || t.more_job_ids)
         WHERE t.more_job_ids IS NOT NULL
         GROUP BY t.id, t.schedule, t.due_at HAVING count(*) <> count(DISTINCT j.run_key)""",
    # The end of a condition's session, or statement, may be the condition's own doing.
    "a failed tick": """
        SELECT schedule, due_at, error FROM pgbeat.ticks
         WHERE outcome = 'failed' AND NOT (schedule ~ '^asked'
               AND error ~ '^(AdminShutdown|the condition took longer)')""",
    "a disabled schedule": """
        SELECT name, disabled_reason FROM pgbeat.schedules
         WHERE NOT enabled AND completed_at IS NULL""",
    "a failed attempt with two retries": """
        SELECT retry_of, count(*) FROM pgbeat.jobs WHERE retry_of IS NOT NULL AND attempt > 1
         GROUP BY 1 HAVING count(*) > 1""",
    "an attempt too many": """
        SELECT id, attempt, max_attempts FROM pgbeat.jobs WHERE attempt > max_attempts""",
    "a failed job that was not tried again": """
        SELECT id, error FROM pgbeat.jobs
         WHERE state = 'failed' AND attempt < max_attempts AND retried_by IS NULL AND NOT keeps_id
           AND cancel_requested_at IS NULL""",
    "two unfinished jobs of one key": """
        SELECT task, unique_key FROM pgbeat.jobs
         WHERE unique_key IS NOT NULL AND finished_at IS NULL
         GROUP BY 1, 2 HAVING count(*) > 1""",
    "a lane with more slots in use than it has": """
        SELECT l.name, count(*), l.max_running
          FROM pgbeat.lanes l JOIN pgbeat.jobs j ON j.lane = l.name
         WHERE j.finished_at IS NULL AND j.dispatched_at IS NOT NULL
           AND j.state IN ('pending', 'scheduled', 'running')
         GROUP BY l.name, l.max_running HAVING count(*) > l.max_running""",
    "a due time that is excluded": """
        SELECT schedule, due_at FROM pgbeat.ticks
         WHERE schedule = 'calendar' AND outcome = 'launched' AND trigger = 'timetable'
           AND extract(second FROM due_at) < 30""",
    "more launches than allowed": """
        SELECT s.name, count(*) FROM pgbeat.schedules s JOIN pgbeat.ticks t ON t.schedule_id = s.id
         WHERE s.max_runs IS NOT NULL AND t.outcome = 'launched'
         GROUP BY s.name, s.max_runs HAVING count(*) > s.max_runs""",
    "one time with two ticks": """
        SELECT schedule, count(*) FROM pgbeat.ticks WHERE schedule ~ '^once'
         GROUP BY 1 HAVING count(*) > 1""",
}
#: Queries that must return no row once all has finished.
_NOT_AFTERWARDS = {
    "a job that has not ended": """
        SELECT id, state, lane, dispatched_at, worker, error FROM pgbeat.jobs
         WHERE finished_at IS NULL""",
    "an execution that has not ended": """
        SELECT job_id, number, worker FROM pgbeat.executions WHERE state = 'running'""",
    "a message that is left": """
        SELECT q.name, m.id, m.claimed_by, m.job_id FROM kombu_message m
          JOIN kombu_queue q ON q.id = m.queue_id WHERE q.name = 'celery'""",
    "a claim of a consumer that is gone": """
        SELECT m.id, m.claimed_by FROM kombu_message m
         WHERE claimed_by IS NOT NULL
           AND NOT EXISTS (SELECT FROM pgbeat.consumers c WHERE c.id = m.claimed_by)""",
    "ends of jobs that no tick of `after` accounts for": """
        SELECT s.name, (SELECT count(*) FROM pgbeat.ticks t JOIN pgbeat.schedules u
                            ON u.id = t.schedule_id
                         WHERE u.name = s.after AND t.outcome = 'launched') AS launched,
               (SELECT coalesce(sum(1 + t.missed), 0) FROM pgbeat.ticks t
                 WHERE t.schedule_id = s.id) AS accounted
          FROM pgbeat.schedules s
         WHERE s.after IS NOT NULL
           AND (SELECT count(*) FROM pgbeat.ticks t JOIN pgbeat.schedules u ON u.id = t.schedule_id
                 WHERE u.name = s.after AND t.outcome = 'launched')
            <> (SELECT coalesce(sum(1 + t.missed), 0) FROM pgbeat.ticks t
                 WHERE t.schedule_id = s.id)""",
    "one time without its tick": """
        SELECT s.name, s.enabled, s.next_run FROM pgbeat.schedules s
         WHERE s.once_at IS NOT NULL AND NOT EXISTS (SELECT FROM pgbeat.ticks t
                WHERE t.schedule_id = s.id AND t.outcome = 'launched')""",
}


def _kept(record: Record) -> dict[str, list[str]]:
    """What was promised is there, what was rolled back is not."""
    promised = record.promised
    started = {line.id for line in record.journal}
    jobs = {str(row[0]) for row in record.sql("SELECT id FROM pgbeat.jobs")}
    names = {str(row[0]) for row in record.sql("SELECT name FROM pgbeat.schedules")}
    return {
        "a schedule that is not there": sorted(promised.once - names),
        "a submitted job that is not there": sorted(promised.jobs.keys() - jobs),
        "a committed task that never ran": sorted(promised.committed - started),
        "a task that was rolled back and ran": sorted(promised.rolled_back & started),
    }


def _not_ended(record: Record, ends: Counter[str]) -> list[str]:
    completed = record.sql("SELECT id::text FROM pgbeat.jobs WHERE state = 'completed'")
    return [job for (job,) in completed if job not in ends]


def _repeated(record: Record, ends: Counter[str]) -> list[str]:
    """Returns jobs that were started twice without a fault of one of the two workers.

    The second worker may have had the message in memory when it lost its session. A task may say
    itself that it will run again. What is no job runs again, too, if its sender did.
    """
    plain = {name for name, policy in chaos_app.POLICIES.items() if policy is None}
    sent_twice = canvases.sent_twice(record.promised.canvases, ends)
    starts: dict[str, list[Line]] = defaultdict(list)
    for line in record.journal:
        if line.phase == "start":
            if line.task not in plain or line.id not in sent_twice:
                starts[line.id].append(line)
        elif line.phase == "again":
            starts.pop(line.id, None)
    faults = (*record.faults, *_deaths(record))
    return [
        f"{job} on {first.worker} at {first.at:.1f}, on {second.worker} at {second.at:.1f}"
        for job, each in starts.items()
        for first, second in pairwise(each)
        if not any(_excused(line.worker, first.at, second.at, faults) for line in (first, second))
    ]


def _exited(record: Record) -> list[str]:
    """Returns processes that ended though nothing killed them: no fault of the server may.

    A prefork worker ends, in plain Celery too, if its pool loses a process as it starts.
    """
    killed = {fault.whom for fault in _deaths(record)}
    killed |= {fault.whom for fault in record.faults if fault.kind == "child killed"}
    return [
        fault.whom
        for fault in record.faults
        if fault.kind == "ended by itself" and fault.whom not in killed
    ]


def _crowded(record: Record) -> list[str]:
    """No more jobs of a lane are at work at once than its limit.

    What a worker starts that counts as dead has no slot, if its job has ended elsewhere.
    """
    jobs = {
        job: (lane, ended)
        for job, lane, ended in record.sql(
            "SELECT id::text, lane, extract(epoch FROM finished_at)::float FROM pgbeat.jobs"
            " WHERE lane IS NOT NULL"
        )
    }
    faults, ends = (*record.faults, *_deaths(record)), _ends(record)
    over: list[str] = []
    for lane, limit in LANES.items():
        running: dict[str, Line] = {}
        for line in sorted(record.journal, key=lambda each: each.at):
            own_lane, ended = jobs.get(line.id, (None, None))
            if own_lane != lane or (line.phase == "start" and (ended or line.at) < line.at):
                continue
            if line.phase != "start":
                running.pop(line.id, None)
                continue
            # What failed, skipped, or was killed wrote no end.
            running = {
                job: other
                for job, other in running.items()
                if not any(abs(b - other.at) < 1 and e <= line.at for b, e in ends[job])
                and not any(
                    _excused(worker, other.at, line.at, faults)
                    for worker in (other.worker, line.worker)
                )
            }
            running[line.id] = line
            if len(running) > limit:
                over.append(f"{lane}, limit {limit}: {sorted(running)} at {line.at:.1f}")
    return over


def _ends(record: Record) -> dict[str, list[tuple[float, float]]]:
    """When each job's executions began and ended."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for job, began, ended in record.sql(
        "SELECT job_id::text, extract(epoch FROM started_at)::float,"
        " extract(epoch FROM finished_at)::float FROM pgbeat.executions"
        " WHERE finished_at IS NOT NULL"
    ):
        found[job].append((began, ended))
    return found


def _deaths(record: Record) -> list[Fault]:
    """Tasks that took their process with them, as faults of their workers."""
    return [
        Fault("died", line.worker, line.at, line.at)
        for line in record.journal
        if line.phase == "die"
    ]


def _excused(worker: str, since: float, until: float, faults: Iterable[Fault]) -> bool:
    """Whether a fault hit the worker between its start of a job and the next one."""
    return any(
        fault.whom in ("*", worker)
        and fault.began <= until + _AFTER
        and fault.ended >= since - _BEFORE
        for fault in faults
    )
