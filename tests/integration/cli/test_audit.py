"""Each change by the command line is in the audit log, with its actor and the values before."""

import getpass
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from celery import Celery
from celery.beat import PersistentScheduler
from click import Group
from psycopg.types.json import Jsonb
from sqlalchemy.exc import DBAPIError

from pgbeat.cli import program
from pgbeat.database.migrations.migrate import newest
from tests.support.command_line import Sql, commands, read, run, run_on_terminal, run_with
from tests.support.jobs import make_app
from tests.support.rows import make_job, make_lane
from tests.support.webhook_receiver import Receiver

ME = f"user:{getpass.getuser()}"
#: Commands that change nothing of anybody's. `metrics` brings its own counters up to date;
#: `web` and `demo` serve, and what is changed there is noted there.
READING = {
    "cursor show",
    "audit", "calendars check", "calendars list", "calendars show", "check", "dead list", "demo",
    "doctor", "errors", "explain", "export", "forecast", "groups list", "groups show", "history",
    "jobs list", "jobs logs", "jobs show", "jobs stats", "jobs tail", "jobs tree", "lanes list",
    "lanes show",
    "list", "load", "metrics", "next", "status", "templates list", "templates show", "tokens list",
    "tasks", "top", "web", "webhooks deliveries", "webhooks list", "webhooks show",
}  # fmt: skip
#: They need a store of another beat's, or a worker: the tests of these look into the audit.
ELSEWHERE = {
    "import django-celery-beat",
    "import redbeat",
    "import sqlalchemy-celery-beat",
    "workers add-consumer",
    "workers cancel-consumer",
    "workers grow",
    "workers shrink",
    "workers shutdown",
}


class Case(NamedTuple):
    """A command line that changes something, and what the audit log says of it."""

    given: str
    note: tuple[str, str, str]
    #: The same, of what is known of before and after.
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    #: What is run first.
    first: tuple[str, ...] = ()
    #: How often it is noted.
    times: int = 1


ADD = "add n --task jobs.add --every 1h --args [1]"
HOOK = "webhooks add n --url {url} --event job.failed"
LANE = "lanes set n --limit 2"
CALENDAR = "calendars add n --weekdays sat"
#: By command; {…} is what `Stage` has made.
CHANGING = {
    "add": Case(ADD, ("create", "schedule", "n"), None, {"task": "jobs.add", "every": 3600}),
    "backfill": Case(
        "backfill n --from {earlier}",
        ("backfill", "schedule", "n"), None, {"outcome": "launched"},
        ("add n --task jobs.add --args [1] --cron @hourly",), 2,
    ),
    "calendars add": Case(
        CALENDAR, ("create", "calendar", "n"), None, {"definition": {"weekdays": ["sat"]}}
    ),
    "calendars remove": Case(
        "calendars remove n --yes", ("delete", "calendar", "n"),
        {"definition": {"weekdays": ["sat"]}}, None, (CALENDAR,),
    ),
    "calendars update": Case(
        "calendars update n --weekdays sun", ("update", "calendar", "n"),
        {"definition": {"weekdays": ["sat"]}}, {"definition": {"weekdays": ["sun"]}}, (CALENDAR,),
    ),
    "cursor clear": Case(
        "cursor clear n", ("update", "schedule", "n"), {"cursor": 5}, {"cursor": None},
        (ADD, "cursor set n 5"),
    ),
    "cursor set": Case(
        "cursor set n 5", ("update", "schedule", "n"), {"cursor": None}, {"cursor": 5}, (ADD,)
    ),
    "dead drop": Case(
        "dead drop {dead} --yes", ("drop", "dead letter", "{dead}"), None,
        {"count": 1, "queues": {"celery": 1}},
    ),
    "dead requeue": Case(
        "dead requeue {dead}", ("requeue", "dead letter", "{dead}"), None,
        {"count": 1, "queues": {"celery": 1}},
    ),
    "direct": Case(
        "direct jobs.add --lane l --args [1]", ("run", "direct", "jobs.add"), None, {"lane": "l"}
    ),
    "disable": Case(
        "disable n --reason why", ("disable", "schedule", "n"), {"enabled": True},
        {"enabled": False, "disabled_reason": "why"}, (ADD,),
    ),
    "enable": Case(
        "enable n", ("enable", "schedule", "n"), {"enabled": False}, {"enabled": True},
        (ADD, "disable n"),
    ),
    "groups cancel": Case(
        "groups cancel {group}", ("cancel", "group", "{group}"),
        {"cancelled_by": None}, {"cancelled_by": ME},
    ),
    "groups run": Case(
        "groups run {group_file}", ("create", "group", "?"), None,
        {"jobs": 2, "tasks": ["jobs.add"], "mode": "sequential"},
    ),
    "jobs run-many": Case(
        "jobs run-many {lines_file}", ("create", "job", "2 jobs"), None, {"jobs": 2}
    ),
    "import celery": Case(
        "import celery --from {beat_file}", ("create", "schedule", "n"), None,
        {"task": "tests.add", "every": 3600, "source": "import"},
    ),
    "jobs approve": Case(
        "jobs approve {awaiting} --admin", ("approve", "job", "{awaiting}"),
        {"state": "paused", "approved_by": None}, {"state": "pending", "approved_by": ME},
    ),
    "jobs cancel": Case(
        "jobs cancel {job}", ("cancel", "job", "{job}"), {"state": "pending"},
        {"state": "cancelled"},
    ),
    "jobs delete": Case(
        "jobs delete {ended} --yes", ("delete", "job", "{ended}"),
        {"state": "failed", "task": "jobs.add"}, None,
    ),
    "jobs move": Case(
        "jobs move {waiting} front --priority 3", ("move", "job", "{waiting}"), {"priority": 0},
        {"priority": 3, "place": 1},
    ),
    "jobs pause": Case(
        "jobs pause {job}", ("pause", "job", "{job}"), {"state": "pending"}, {"state": "paused"}
    ),
    "jobs resume": Case(
        "jobs resume {job}", ("resume", "job", "{job}"), {"state": "paused"}, {"state": "pending"},
        ("jobs pause {job}",),
    ),
    "jobs retry": Case(
        "jobs retry {ended}", ("retry", "job", "{ended}"), None,
        {"state": "pending", "retry_of": "{ended}"},
    ),
    "jobs run": Case(
        "jobs run jobs.add --args [1] --priority 2", ("create", "job", "?"), None,
        {"task": "jobs.add", "priority": 2, "created_by": ME},
    ),
    "jobs update": Case(
        "jobs update {job} --priority 7", ("update", "job", "{job}"), {"priority": 0},
        {"priority": 7},
    ),
    "lanes pause": Case("lanes pause l", ("pause", "lane", "l"), {"paused_at": None}),
    "lanes remove": Case(
        "lanes remove n --yes", ("delete", "lane", "n"), {"max_running": 2}, None, (LANE,)
    ),
    "lanes resume": Case(
        "lanes resume l", ("resume", "lane", "l"), None, {"paused_at": None}, ("lanes pause l",)
    ),
    "lanes set": Case(
        "lanes set n --limit 3 --rate 10/minute", ("update", "lane", "n"),
        {"max_running": 2, "rate": None}, {"max_running": 3, "rate": "10/minute"}, (LANE,),
    ),
    "pause": Case("pause n", ("pause", "schedule", "n"), {"paused_at": None}, None, (ADD,)),
    "prune": Case(
        "prune --days 3", ("prune", "history", ""), None, {"deleted": {"jobs": 1}}
    ),
    "queues pause": Case("queues pause celery", ("pause", "queue", "celery"), {"paused_at": None}),
    "queues purge": Case(
        "queues purge celery --yes", ("purge", "queue", "celery"), None, {"deleted": 1}
    ),
    "queues resume": Case(
        "queues resume celery", ("resume", "queue", "celery"), None, {"paused_at": None},
        ("queues pause celery",),
    ),
    "remove": Case(
        "remove n --yes", ("delete", "schedule", "n"), {"task": "jobs.add"}, None, (ADD,)
    ),
    "resume": Case(
        "resume n", ("resume", "schedule", "n"), None, {"paused_at": None}, (ADD, "pause n")
    ),
    "sync": Case(
        "sync {schedules_file} --adopt", ("update", "schedule", "n"),
        {"every": 3600, "source": "cli"}, {"every": 7200, "source": "file"}, (ADD,),
    ),
    "templates remove": Case(
        "templates remove n --yes", ("delete", "template", "n"), {"task": "jobs.add"}, None,
        ("templates set n --task jobs.add",),
    ),
    "templates set": Case(
        "templates set n --task jobs.add --priority 3", ("update", "template", "n"),
        {"job_policy": {}}, {"job_policy": {"priority": 3}}, ("templates set n --task jobs.add",),
    ),
    "tokens create": Case(
        "tokens create --for bob", ("create", "token", "?"), None,
        {"actor": "bob", "scope": "user"},
    ),
    "tokens revoke": Case("tokens revoke {token}", ("revoke", "token", "{token}"),
                          {"actor": "alice", "scope": "user"}),
    "trigger": Case(
        "trigger n", ("trigger", "schedule", "n"), None, {"outcome": "launched"}, (ADD,)
    ),
    "update": Case(
        "update n --every 2h", ("update", "schedule", "n"), {"every": 3600}, {"every": 7200},
        (ADD,),
    ),
    "webhooks add": Case(
        HOOK, ("create", "webhook", "n"), None, {"events": ["job.failed"], "created_by": ME}
    ),
    "webhooks disable": Case(
        "webhooks disable n", ("disable", "webhook", "n"), {"enabled": True}, {"enabled": False},
        (HOOK,),
    ),
    "webhooks enable": Case(
        "webhooks enable n", ("enable", "webhook", "n"), {"enabled": False}, {"enabled": True},
        (HOOK, "webhooks disable n"),
    ),
    "webhooks redeliver": Case(
        "webhooks redeliver {delivery}", ("redeliver", "webhook", "w"), None,
        {"count": 1, "deliveries": ["{delivery}"]},
    ),
    "webhooks remove": Case(
        "webhooks remove n --yes", ("delete", "webhook", "n"), {"events": ["job.failed"]}, None,
        (HOOK,),
    ),
    "webhooks test": Case("webhooks test n", ("test", "webhook", "n"), None, {"url": "{url}"},
                          (HOOK,)),
    "webhooks update": Case(
        "webhooks update n --event tick.failed", ("update", "webhook", "n"),
        {"events": ["job.failed"]}, {"events": ["tick.failed"]}, (HOOK,),
    ),
}  # fmt: skip


def test_each_command_is_known_as_one_that_changes_something_or_not() -> None:
    leaves = {
        " ".join(path)
        for path, each in commands(program)
        if not isinstance(each, Group) and path[0] != "schedules"
    }
    assert leaves == READING | ELSEWHERE | CHANGING.keys() | {"migrate"}
    assert not READING & CHANGING.keys()


class Stage:
    """A database whose rows are made when a test first names them."""

    def __init__(self, sql: Sql, app: Celery, folder: Path, url: str) -> None:
        self.sql, self.app, self._folder = sql, app, folder
        self.app.conf.pgbeat_webhook_private = True
        earlier = datetime.now(UTC) - timedelta(hours=2)
        self._known: dict[str, str] = {"url": url, "earlier": earlier.isoformat()}

    def __getitem__(self, name: str) -> str:
        if name not in self._known:
            self._known[name] = getattr(self, f"_make_{name}")()
        return self._known[name]

    def run(self, written: str) -> str:
        """Runs `celery -A app pgbeat …`; returns what it prints."""
        given = [part.format_map(self) for part in written.split(" ")]
        result = run_with(self.app, *given)
        assert result.exit_code == 0, result.output
        return result.stdout

    def _make_job(self, more: str = "") -> str:
        made = json.loads(self.run(f"jobs run jobs.add --args [1]{more} --json"))
        return str(made["id"])

    def _make_awaiting(self) -> str:
        return self._make_job(" --requires-approval")

    def _make_waiting(self) -> str:
        self._make_job(" --lane l")
        return self._make_job(" --lane l")

    def _make_ended(self) -> str:
        return make_job(self.sql, "failed", created_by=ME)

    def _make_dead(self) -> str:
        payload = json.dumps({"headers": {"task": "jobs.add", "id": str(uuid4())}})
        [(made,)] = self.sql(
            "INSERT INTO kombu_message_dead (id, queue, payload, reason, deliveries, priority, "
            "enqueued_at, died_at) VALUES (7, 'celery', %s, 'rejected', 3, 0, now(), now()) "
            "RETURNING id",
            payload,
        )
        return str(made)

    def _file(self, name: str, content: Any) -> str:
        path = self._folder / name
        path.write_text(json.dumps(content))
        return str(path)

    def _make_group_file(self) -> str:
        jobs = [{"task": "jobs.add", "args": [1]}] * 2
        return self._file("group.json", {"mode": "sequential", "jobs": jobs})

    def _make_lines_file(self) -> str:
        path = self._folder / "jobs.jsonl"
        path.write_text('{"task": "jobs.add", "args": [1]}\n' * 2)
        return str(path)

    def _make_group(self) -> str:
        return str(json.loads(self.run("groups run {group_file} --json"))["id"])

    def _make_schedules_file(self) -> str:
        content = {"name": "n", "task": "jobs.add", "args": [1], "every": "2h"}
        return self._file("schedules.json", {"schedules": [content]})

    def _make_beat_file(self) -> str:
        app = Celery("tests", broker="memory://", set_as_current=False)
        app.conf.update(
            beat_schedule={"n": {"task": "tests.add", "schedule": timedelta(hours=1)}},
            result_expires=None,
        )
        path = self._folder / "celerybeat-schedule"
        PersistentScheduler(app=app, schedule_filename=str(path)).close()
        return str(path)

    def _make_token(self) -> str:
        return str(json.loads(self.run("tokens create --for alice --json"))["id"])

    def _make_delivery(self) -> str:
        self.run("webhooks add w --url {url} --event job.failed")
        [(made,)] = self.sql(
            "INSERT INTO pgbeat.deliveries (webhook_id, event, payload, state, next_at, "
            "finished_at) SELECT id, 'job.failed', '{}', 'failed', NULL, now() "
            "FROM pgbeat.webhooks RETURNING id"
        )
        return str(made)


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    """Yields a receiver of webhooks."""
    running = Receiver()
    yield running
    running.close()


@pytest.fixture
def stage(
    database: str, sql: Sql, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> Stage:
    """Returns a database with an app, a lane and a receiver."""
    monkeypatch.delenv("PGBEAT_ADMIN", raising=False)
    made = Stage(sql, make_app(database), tmp_path, receiver.url())
    run_with(made.app, "migrate")
    make_lane(sql, "l", 1)
    return made


@pytest.mark.parametrize("command", CHANGING)
def test_each_change_is_noted(stage: Stage, sql: Sql, database: str, command: str) -> None:
    case = CHANGING[command]
    for line in case.first:
        stage.run(line)
    _prepare(stage, sql, command)
    given = case.given.format_map(stage)
    [(mark,)] = sql("SELECT coalesce(max(id), 0) FROM pgbeat.audit")
    if command == "import celery":  # without the app, whose entries come by themselves
        assert run(database, *given.split(" ")).exit_code == 0
    else:
        stage.run(given)
    rows = sql(
        "SELECT actor, origin, verb, kind, subject, before, after FROM pgbeat.audit WHERE id > %s",
        mark,
    )
    assert len(rows) == case.times, rows
    for actor, origin, verb, kind, subject, before, after in rows:
        assert (actor, origin) == (ME, "cli")
        wanted = tuple(part.format_map(stage) for part in case.note)
        assert (verb, kind, subject if wanted[2] != "?" else "?") == wanted
        _has(stage, before, case.before)
        _has(stage, after, case.after)


def _prepare(stage: Stage, sql: Sql, command: str) -> None:
    if command == "prune":
        make_job(
            sql,
            "failed",
            created_at="2026-01-01",
            started_at="2026-01-01",
            finished_at="2026-01-01",
        )
    elif command == "queues purge":
        assert stage["job"]


def _has(stage: Stage, found: Any, wanted: dict[str, Any] | None) -> None:
    if wanted is not None:
        filled = _filled(stage, wanted)
        assert found.items() >= filled.items(), (found, filled)


def _filled(stage: Stage, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _filled(stage, each) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(stage, each) for each in value]
    return value.format_map(stage) if isinstance(value, str) else value


def test_what_an_import_makes_of_the_apps_code_is_noted(stage: Stage, sql: Sql) -> None:
    entry = {"task": "jobs.add", "schedule": timedelta(hours=1), "args": (1,)}
    stage.app.conf.beat_schedule = {"n": entry}
    file = stage["beat_file"]
    for _ in range(2):  # the second time there is nothing to do
        stage.run(f"import celery --from {file}")
    [row] = sql("SELECT verb, subject, before, after FROM pgbeat.audit WHERE kind = 'schedule'")
    assert row[:3] == ("create", "n", None)
    assert row[3].items() >= {"source": "code", "task": "jobs.add", "every": 3600}.items()


def test_a_cron_stays_whole_in_a_narrow_terminal(database: str, sql: Sql) -> None:
    old, new = "0 6 1 jan,apr,jul,oct *", "*/15 6-22 * * mon-fri"
    sql(
        "INSERT INTO pgbeat.audit (actor, origin, verb, kind, subject, before, after) "
        "VALUES ('user:a', 'cli', 'update', 'schedule', 's', %s, %s)",
        Jsonb({"cron": old}),
        Jsonb({"cron": new}),
    )
    listed = run_on_terminal(database, 50, "audit")
    assert [text.strip() for text in listed[-2:]] == [f"cron: {old} →", new]


def test_a_migration_is_noted_with_its_versions(empty_database: str) -> None:
    assert run(empty_database, "migrate").exit_code == 0
    assert run(empty_database, "migrate").exit_code == 0  # there is nothing left to do
    [row] = read(empty_database, "audit")
    assert (row["actor"], row["verb"], row["kind"]) == (ME, "migrate", "schema")
    assert (row["before"], row["after"]) == ({"version": None}, {"version": newest()})


@pytest.mark.parametrize(
    "command",
    [
        "add n --task jobs.add --every 1h --dry-run",
        "add s --task jobs.add --every 1h",
        "update s --every 3h --dry-run",
        "update s --every 1h",
        "remove s --dry-run",
        "enable s",
        "resume s",
        "calendars add n --weekdays sat --dry-run",
        "lanes set n --dry-run",
        "lanes set l --limit 1",
        "lanes resume l",
        "lanes remove l --dry-run",
        "templates set n --task jobs.add --dry-run",
        "sync {schedules_file} --plan",
        "import celery --from {beat_file} --dry-run",
        "dead drop {dead} --dry-run",
        "dead requeue {dead} --dry-run",
        "queues purge celery --dry-run",
        "prune --dry-run",
        "jobs run jobs.add --args [1] --dry-run",
        "groups run {group_file} --dry-run",
        "jobs delete {ended} --dry-run",
        "webhooks redeliver {delivery} --dry-run",
        "tokens revoke {token} --dry-run",
        "backfill s --from {earlier} --dry-run",
    ],
)
def test_what_changes_nothing_leaves_nothing(stage: Stage, sql: Sql, command: str) -> None:
    stage.run("add s --task jobs.add --args [1] --every 1h")
    given = command.format_map(stage)
    before = sql("SELECT count(*) FROM pgbeat.audit")
    run_with(stage.app, *given.split(" "))
    assert sql("SELECT count(*) FROM pgbeat.audit") == before


def test_a_change_that_fails_leaves_nothing(stage: Stage, sql: Sql) -> None:
    stage.run(ADD)
    mark = sql("SELECT count(*) FROM pgbeat.audit")
    sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE 'no room'; END$$"
    )
    sql(
        "CREATE TRIGGER refuse BEFORE INSERT ON pgbeat.audit FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    for command in ("pause n", "trigger n", "jobs run jobs.add --args [1]", "lanes pause l"):
        with pytest.raises((DBAPIError, AssertionError)):
            stage.run(command)
    assert sql("SELECT paused_at FROM pgbeat.schedules WHERE name = 'n'") == [(None,)]
    assert sql("SELECT paused_at FROM pgbeat.lanes") == [(None,)]
    assert sql("SELECT 1 FROM pgbeat.jobs") == []
    assert sql("SELECT count(*) FROM pgbeat.audit") == mark
