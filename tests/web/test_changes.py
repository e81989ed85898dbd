"""Each change is in the audit log with its actor and the values before, whichever face made it."""

import getpass
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl
from uuid import uuid4

import pytest
from celery import Celery
from celery.beat import PersistentScheduler
from click import Group

from pgbeat.cli import program
from tests.support.command_line import Sql, commands, run, run_with
from tests.support.pages import after, html
from tests.support.refusals import refusing
from tests.support.rows import make_dead_letter, make_delivery, make_job
from tests.support.web import Web
from tests.support.webhook_receiver import Receiver
from tests.web.api.test_permissions import TABLE

ME = f"user:{getpass.getuser()}"
#: Commands that change nothing of anybody's. `metrics` brings its own counters up to date;
#: `web` and `demo` serve, and what is changed there is noted there.
READING = {
    "cursor show",
    "audit", "calendars check", "calendars list", "calendars show", "check", "dead list", "demo",
    "doctor", "errors", "events list", "events url", "explain", "export", "fence tasks", "forecast",
    "groups list", "groups show", "health", "versions",
    "history", "jobs list", "jobs logs", "jobs show", "jobs stats", "jobs tail", "jobs tree",
    "jobs stack",
    "lanes list", "lanes show",
    "list", "load", "metrics", "next", "status", "templates list", "templates show", "tokens list",
    "all", "dev", "tasks", "top", "web", "webhooks deliveries", "webhooks incidents",
    "webhooks list", "webhooks show",
}  # fmt: skip
#: They need a store of another beat's, a worker, or a restored database: the tests of these look
#: into the audit.
ELSEWHERE = {
    "fence accept",
    "fence raise",
    "fence release",
    "import apscheduler",
    "import crontab",
    "import django-celery-beat",
    "import kubernetes",
    "import pg-cron",
    "import redbeat",
    "import sqlalchemy-celery-beat",
    "workers add-consumer",
    "workers cancel-consumer",
    "workers grow",
    "workers shrink",
    "workers shutdown",
}


class Case(NamedTuple):
    """A verb: what the audit log says of it, and how each face is asked for it."""

    #: Verb, kind and subject.
    note: str
    cli: str
    #: Method, path and body.
    api: str = ""
    #: The console's page and its form; the page's own, filled in, where it is an edit.
    page: str = ""
    #: The commands that are run first.
    first: tuple[str, ...] = ()
    #: What is known of before and after; the same of each face.
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    #: How often it is noted.
    times: int = 1


#: By noun: what its commands begin with, its path in the API, and the page.
PLACES = {
    "schedule": ("", "/admin/scheduled-jobs", "schedules"),
    **{
        f"{noun}": (f"{noun}s ", f"/{noun}s", f"{noun}s")
        for noun in ("calendar", "group", "job", "lane", "template", "webhook")
    },
}


def plain(verb: str, noun: str, key: str = "{n}", **more: Any) -> Case:
    """Returns the case of a verb that takes no more than a thing's name."""
    command, path, page = PLACES[noun]
    return Case(
        f"{verb} {noun} {key}",
        f"{command}{verb} {key}{' --admin' if verb == 'approve' else ''}",
        f"POST {path}/{key}/{verb}",
        f"{page}/{key}?do={verb}",
        **more,
    )


def removed(noun: str, first: str, before: dict[str, Any]) -> Case:
    """Returns the case of a thing that is removed."""
    command, path, page = PLACES[noun]
    cli, page = f"{command}remove {{n}} --yes", f"{page}/{{n}}?do=delete"
    return Case(f"delete {noun} {{n}}", cli, f"DELETE {path}/{{n}}", page, (first,), before)


ADD = "add {n} --task tests.add --every 1h"
HOOK = "webhooks add {n} --url {url} --event job.failed"
LANE = "lanes set {n} --limit 2"
CALENDAR = "calendars add {n} --weekdays sat"
TEMPLATE = "templates set {n} --task jobs.add"
SCHEDULE = "/admin/scheduled-jobs/{n}"
SATURDAYS, SUNDAYS = ({"definition": {"weekdays": [day]}} for day in ("sat", "sun"))
#: By command, with more after a comma; {…} is what `Stage` has made.
CHANGING = {
    "add": Case(
        "create schedule {n}",
        ADD,
        'POST /admin/scheduled-jobs {"name": "{n}", "task": "tests.add", "every": "1h"}',
        "new/schedule?name={n}&kind=every&timetable=1h&task=tests.add",
        after={"task": "tests.add", "every": 3600},
    ),
    **{
        f"add, {state}": Case(
            "create schedule {n}",
            f"add {{n}} --task tests.add --cron @daily --{state}",
            f'POST /admin/scheduled-jobs {{"name": "{{n}}", "task": "tests.add", "cron": "@daily", '
            f"{given}}}",
            f"new/schedule?name={{n}}&kind=cron&timetable=@daily&task=tests.add&state={state}",
            after={"enabled": state == "paused"},
        )
        for state, given in (("disabled", '"enabled": false'), ("paused", '"paused": true'))
    },
    "backfill": Case(
        "backfill schedule {n}",
        "backfill {n} --from {earlier}",
        f'POST {SCHEDULE}/backfill {{"start": "{{earlier}}"}}',
        "backfill/{n}?start={earlier}&do=launch",
        ("add {n} --task jobs.add --args [1] --cron @hourly",),
        after={"outcome": "launched"},
        times=2,
    ),
    "calendars add": Case(
        "create calendar {n}",
        CALENDAR,
        'POST /calendars {"name": "{n}", "definition": {"weekdays": ["sat"]}}',
        'new/calendar?name={n}&definition={"weekdays": ["sat"]}',
        after=SATURDAYS,
    ),
    "calendars remove": removed("calendar", CALENDAR, SATURDAYS),
    "calendars update": Case(
        "update calendar {n}",
        "calendars update {n} --weekdays sun",
        'PUT /calendars/{n} {"definition": {"weekdays": ["sun"]}}',
        'calendars/{n}?do=edit&definition={"weekdays": ["sun"]}',
        (CALENDAR,),
        SATURDAYS,
        SUNDAYS,
    ),
    "cursor clear": Case(
        "update schedule {n}",
        "cursor clear {n}",
        f'PUT {SCHEDULE}/cursor {{"cursor": null}}',
        first=(ADD, "cursor set {n} 5"),
        before={"cursor": 5},
        after={"cursor": None},
    ),
    "cursor set": Case(
        "update schedule {n}",
        "cursor set {n} 5",
        f'PUT {SCHEDULE}/cursor {{"cursor": 5}}',
        first=(ADD,),
        before={"cursor": None},
        after={"cursor": 5},
    ),
    "dead drop": Case(
        "drop dead letter {dead}",
        "dead drop {dead} --yes",
        'POST /dead/drop {"ids": [{dead}]}',
        "dead?do=drop&id={dead}",
        after={"count": 1, "queues": {"celery": 1}},
    ),
    "dead requeue": Case(
        "requeue dead letter {dead}",
        "dead requeue {dead}",
        'POST /dead/requeue {"ids": [{dead}]}',
        "dead?do=requeue&id={dead}",
        after={"count": 1, "queues": {"celery": 1}},
    ),
    "direct": Case(
        "run direct jobs.add",
        "direct jobs.add --lane {n} --args [1]",
        'POST /direct/jobs.add {"lane": "{n}", "args": [1]}',
        first=(LANE,),
        after={"lane": "{n}"},
    ),
    "disable": plain(
        "disable",
        "schedule",
        first=(ADD,),
        before={"enabled": True},
        after={"enabled": False, "disabled_reason": "disabled by hand"},
    ),
    "enable": plain(
        "enable",
        "schedule",
        first=(ADD, "disable {n}"),
        before={"enabled": False},
        after={"enabled": True},
    ),
    "events emit": Case(
        "emit event {n}",
        "events emit {n} --value 12",
        'POST /events {"key": "{n}", "value": 12}',
        "events?do=emit&key={n}&value=12",
    ),
    "groups cancel": plain(
        "cancel", "group", "{group}", before={"cancelled_by": None}, after={"cancelled_by": "{me}"}
    ),
    "groups run": Case(
        "create group ?",
        "groups run {group_file}",
        'POST /groups {"mode": "sequential", "jobs": ["tests.add", "tests.add"]}',
        "new/group?mode=sequential&on_failure=stop&jobs=tests.add%0Atests.add",
        after={"jobs": 2, "tasks": ["tests.add"], "mode": "sequential"},
    ),
    "import celery": Case(
        "create schedule n",
        "import celery --from {beat_file}",
        after={"task": "tests.add", "every": 3600, "source": "import"},
    ),
    "jobs approve": plain(
        "approve",
        "job",
        "{awaiting}",
        before={"state": "paused", "approved_by": None},
        after={"state": "pending", "approved_by": "{me}"},
    ),
    "jobs cancel": plain(
        "cancel", "job", "{job}", before={"state": "pending"}, after={"state": "cancelled"}
    ),
    "jobs cancel, with a reason": Case(
        "cancel job {job}",
        "jobs cancel {job} --reason why",
        'POST /jobs/{job}/cancel {"reason": "why"}',
        "jobs/{job}?do=cancel&reason=why",
        after={"error": "cancelled by {me}: why"},
    ),
    "jobs delete": Case(
        "delete job {ended}",
        "jobs delete {ended} --yes",
        "DELETE /jobs/{ended}",
        "jobs/{ended}?do=delete",
        before={"state": "failed", "task": "jobs.add"},
    ),
    "jobs move": Case(
        "move job {waiting}",
        "jobs move {waiting} front",
        'POST /jobs/{waiting}/move {"where": "front"}',
        "lanes/{lane}?do=first&job={waiting}",
        after={"place": 1},
    ),
    "jobs move, with a priority": Case(
        "move job {waiting}",
        "jobs move {waiting} front --priority 3",
        'POST /jobs/{waiting}/move {"where": "front", "priority": 3}',
        before={"priority": 0},
        after={"priority": 3, "place": 1},
    ),
    "jobs pause": plain(
        "pause", "job", "{job}", before={"state": "pending"}, after={"state": "paused"}
    ),
    "jobs resume": plain(
        "resume",
        "job",
        "{job}",
        first=("jobs pause {job}",),
        before={"state": "paused"},
        after={"state": "pending"},
    ),
    "jobs retry": plain(
        "retry", "job", "{ended}", after={"state": "pending", "retry_of": "{ended}"}
    ),
    "jobs retry, with a priority": Case(
        "retry job {ended}",
        "jobs retry {ended} --priority 2",
        'POST /jobs/{ended}/retry {"priority": 2}',
        after={"retry_of": "{ended}", "priority": 2},
    ),
    "jobs run": Case(
        "create job ?",
        "jobs run tests.add --args [1] --priority 2",
        'POST /jobs {"task": "tests.add", "args": [1], "priority": 2}',
        "new/job?task=tests.add&args=[1]&priority=2",
        after={"task": "tests.add", "priority": 2, "created_by": "{me}"},
    ),
    "jobs run-many": Case(
        "create job 2 jobs",
        "jobs run-many {lines_file}",
        'POST /jobs/many {"jobs": [{"task": "jobs.add", "args": [1]}, {"task": "tests.add"}]}',
        after={"jobs": 2},
    ),
    "jobs update": Case(
        "update job {job}",
        "jobs update {job} --priority 7",
        'PATCH /jobs/{job} {"priority": 7}',
        "jobs/{job}?do=update&priority=7&max_attempts=1",
        before={"priority": 0},
        after={"priority": 7},
    ),
    "lanes pause": plain("pause", "lane", first=(LANE,), before={"paused_at": None}),
    "lanes remove": removed("lane", LANE, {"max_running": 2}),
    "lanes remove, by force": Case(
        "delete lane {lane}",
        "lanes remove {lane} --yes --force",
        "DELETE /lanes/{lane}?force=true",
        "lanes/{lane}?do=delete&force=yes&job={waiting}",
        before={"max_running": 1},
    ),
    "lanes resume": plain(
        "resume", "lane", first=(LANE, "lanes pause {n}"), after={"paused_at": None}
    ),
    "lanes set": Case(
        "update lane {n}",
        "lanes set {n} --limit 3 --rate 10/minute",
        'PUT /lanes/{n} {"max_running": 3, "rate": "10/minute"}',
        "lanes/{n}?do=edit&max_running=3&rate=10/minute",
        (LANE,),
        {"max_running": 2, "rate": None},
        {"max_running": 3, "rate": "10/minute"},
    ),
    "lanes set, new": Case(
        "create lane {n}",
        LANE,
        'PUT /lanes/{n} {"max_running": 2}',
        "new/lane?name={n}&max_running=2",
        after={"max_running": 2},
    ),
    "pause": plain("pause", "schedule", first=(ADD,), before={"paused_at": None}),
    "pause, with a reason": Case(
        "pause schedule {n}",
        "pause {n} --reason why",
        f'POST {SCHEDULE}/pause {{"reason": "why"}}',
        "schedules/{n}?do=pause&reason=why",
        (ADD,),
        after={"paused_reason": "why"},
    ),
    "pause, all": Case(
        "pause schedule {n}",
        "pause --all --admin --yes --reason why",
        'POST /admin/scheduled-jobs/pause {"reason": "why"}',
        "schedules?do=pause&reason=why",
        (ADD,),
        after={"paused_reason": "why"},
    ),
    "prune": Case("prune history ", "prune --days 3", after={"deleted": {"jobs": 1}}),
    "queues pause": Case(
        "pause queue {queue}",
        "queues pause {queue}",
        "POST /queues/{queue}/pause",
        "queues?do=pause&queue={queue}",
        before={"paused_at": None},
    ),
    "queues purge": Case(
        "purge queue {queue}",
        "queues purge {queue} --yes",
        "POST /queues/{queue}/purge",
        "queues?do=purge&queue={queue}",
        after={"deleted": 1},
    ),
    "queues resume": Case(
        "resume queue {queue}",
        "queues resume {queue}",
        "POST /queues/{queue}/resume",
        "queues?do=resume&queue={queue}",
        ("queues pause {queue}",),
        after={"paused_at": None},
    ),
    "remove": removed("schedule", ADD, {"task": "tests.add"}),
    "resume": plain("resume", "schedule", first=(ADD, "pause {n}"), after={"paused_at": None}),
    "resume, all": Case(
        "resume schedule {n}",
        "resume --all --admin --yes",
        "POST /admin/scheduled-jobs/resume",
        "schedules?do=resume",
        (ADD, "pause {n}"),
        after={"paused_at": None},
    ),
    "sync": Case(
        "update schedule {n}",
        "sync {schedules_file} --adopt",
        first=(ADD,),
        before={"every": 3600, "source": "cli"},
        after={"every": 7200, "source": "file"},
    ),
    "templates remove": removed("template", TEMPLATE, {"task": "jobs.add"}),
    "templates set": Case(
        "update template {n}",
        f"{TEMPLATE} --priority 3",
        'PUT /templates/{n} {"task": "jobs.add", "job_policy": {"priority": 3}}',
        "templates/{n}?do=edit&job_policy.priority=3",
        (TEMPLATE,),
        {"job_policy": {}},
        {"job_policy": {"priority": 3}},
    ),
    "templates set, new": Case(
        "create template {n}",
        TEMPLATE,
        'POST /templates {"name": "{n}", "task": "jobs.add"}',
        "new/template?name={n}&task=jobs.add",
        after={"task": "jobs.add"},
    ),
    "tokens create": Case(
        "create token ?", "tokens create --for bob", after={"actor": "bob", "scope": "user"}
    ),
    "tokens revoke": Case(
        "revoke token {token}", "tokens revoke {token}", before={"actor": "alice", "scope": "user"}
    ),
    "trigger": plain("trigger", "schedule", first=(ADD,), after={"outcome": "launched"}),
    "update": Case(
        "update schedule {n}",
        "update {n} --every 2h",
        f'PATCH {SCHEDULE} {{"every": "2h"}}',
        "schedules/{n}?do=edit&timetable=2h",
        (ADD,),
        {"every": 3600},
        {"every": 7200},
    ),
    "webhooks add": Case(
        "create webhook {n}",
        HOOK,
        'POST /webhooks {"name": "{n}", "url": "{url}", "events": ["job.failed"]}',
        "new/webhook?name={n}&url={url}&event:job.failed=yes",
        after={"events": ["job.failed"], "created_by": "{me}"},
    ),
    "webhooks disable": plain(
        "disable", "webhook", first=(HOOK,), before={"enabled": True}, after={"enabled": False}
    ),
    "webhooks enable": plain(
        "enable",
        "webhook",
        first=(HOOK, "webhooks disable {n}"),
        before={"enabled": False},
        after={"enabled": True},
    ),
    "webhooks redeliver": Case(
        "redeliver webhook {n}",
        "webhooks redeliver {delivery}",
        "POST /webhooks/{n}/deliveries/{delivery}/redeliver",
        "webhooks/{n}?do=redeliver&id={delivery}",
        (HOOK,),
        after={"count": 1, "deliveries": ["{delivery}"]},
    ),
    "webhooks redeliver, all": Case(
        "redeliver webhook {n}",
        "webhooks redeliver --failed {n}",
        "POST /webhooks/{n}/redeliver",
        "webhooks/{n}?do=redeliver-all&id={delivery}",
        (HOOK,),
        after={"count": 1},
    ),
    "webhooks remove": removed("webhook", HOOK, {"events": ["job.failed"]}),
    "webhooks test": plain("test", "webhook", first=(HOOK,), after={"url": "{url}"}),
    "webhooks update": Case(
        "update webhook {n}",
        "webhooks update {n} --event tick.failed",
        'PATCH /webhooks/{n} {"events": ["tick.failed"]}',
        "webhooks/{n}?do=edit&event:job.failed=&event:tick.failed=yes",
        (HOOK,),
        {"events": ["job.failed"]},
        {"events": ["tick.failed"]},
    ),
}


def test_each_command_is_known_as_one_that_changes_something_or_not() -> None:
    leaves = {
        " ".join(path)
        for path, each in commands(program)
        if not isinstance(each, Group) and path[0] != "schedules"
    }
    changing = {command.partition(",")[0] for command in CHANGING}
    assert leaves == READING | ELSEWHERE | changing | {"grant", "migrate"}
    assert not READING & changing


#: Routes that note nothing, and those whose changes other tests look for.
OTHER_ROUTES = {
    "POST /admin/scheduled-jobs/preview",
    "POST /admin/scheduled-jobs/{}/check",
    "POST /admin/scheduled-jobs/{}/preview",
    "POST /callbacks/{}",
    "POST /console/preview",
    "POST /login",
    "POST /login/link",
    "POST /logout",
    "DELETE /lanes/{}/reservations/{}",
    "POST /console/bulk",
    "POST /console/workers",
    "POST /jobs/bulk",
    "POST /workers/{}/{}",
}


def test_each_route_that_changes_something_is_asked() -> None:
    asked = {" ".join(case.api.split(" ")[:2]) for case in CHANGING.values()}
    asked |= {f"POST /console/{case.page.partition('?')[0]}" for case in CHANGING.values()}
    asked |= {"PUT /calendars/{}", "PUT /templates/{}", "POST /direct/{}"}
    routes = {re.sub(r"\{[^}]*\}", "{}", route) for route in TABLE if not route.startswith("GET ")}
    assert routes - OTHER_ROUTES == {re.sub(r"\{\w+\}", "{}", each) for each in asked} & routes


class Stage:
    """A face of the app; what a test names is made when it is first named."""

    def __init__(self, face: str, web: Web, sql: Sql, folder: Path, url: str) -> None:
        self.face, self.web, self.sql, self._folder = face, web, sql, folder
        self.app: Celery = web.app.state.pgbeat.celery
        earlier = datetime.now(UTC) - timedelta(hours=2)
        actor = ME if face in ("cli", "words") else "user:root"
        self._known: dict[str, str] = {
            "n": f"n-{face}",
            "me": actor,
            "url": url,
            "earlier": earlier.isoformat()[:19] + "Z",
        }

    def __getitem__(self, name: str) -> str:
        if name not in self._known:
            self._known[name] = getattr(self, f"_make_{name}")()
        return self._known[name]

    def filled(self, value: Any) -> Any:
        """Returns a value with what its {…} stand for."""
        if isinstance(value, dict):
            return {key: self.filled(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.filled(each) for each in value]
        if not isinstance(value, str):
            return value
        return re.sub(r"\{(\w+)\}", lambda found: self[found[1]], value)

    def printed(self, written: str) -> str:
        """Runs `celery -A app pgbeat …`; returns what it prints."""
        result = run_with(self.app, *[self.filled(part) for part in written.split(" ")])
        assert result.exit_code == 0, result.output
        return result.stdout

    def run(self, written: str) -> Any:
        """Runs a command with `--json`; returns the JSON."""
        return json.loads(self.printed(f"{written} --json"))

    def do(self, case: Case) -> Any:
        """Has the face do what the case says; returns the command line's or the API's answer."""
        if self.face == "cli":
            return self.run(case.cli)
        if self.face == "words":
            assert self.printed(case.cli).strip()
            return None
        if self.face == "api":
            method, path, *body = self.filled(case.api).split(" ", 2)
            given = {"json": json.loads(body[0])} if body else {}
            answer = self.web.admin.request(method, path, **given)
            assert answer.status_code in (200, 201), answer.text
            return answer.json()
        path, _, query = self.filled(case.page).partition("?")
        form = dict(parse_qsl(query, keep_blank_values=True))
        page = self.web.admins_browser
        if form.get("do") == "edit":
            form = html(page.get(f"/console/{path}")).edit | form
        answer = page.post(f"/console/{path}", data=form)
        if path == "new/webhook":  # the answer itself shows the secret
            assert answer.status_code == 201, answer.text
        else:
            after(page, answer)
        return None

    def _make_lane(self) -> str:
        self.run("lanes set l-{n} --limit 1")
        return f"l-{self['n']}"

    def _make_job(self, more: str = "") -> str:
        return str(self.run(f"jobs run jobs.add --args [1]{more}")["id"])

    def _make_awaiting(self) -> str:
        return self._make_job(" --requires-approval")

    def _make_waiting(self) -> str:
        for _ in range(3):
            job = self._make_job(" --lane {lane}")
        return job

    def _make_ended(self) -> str:
        return make_job(self.sql, "failed", created_by=ME)

    def _make_queue(self) -> str:
        self.run("jobs run jobs.add --args [1] --queue q-{n}")
        return f"q-{self['n']}"

    def _make_dead(self) -> str:
        payload = json.dumps({"headers": {"task": "jobs.add", "id": str(uuid4())}})
        return str(make_dead_letter(self.sql, payload=payload))

    def _file(self, name: str, content: Any) -> str:
        path = self._folder / name
        path.write_text(json.dumps(content))
        return str(path)

    def _make_group_file(self) -> str:
        return self._file("group.json", {"mode": "sequential", "jobs": ["tests.add"] * 2})

    def _make_lines_file(self) -> str:
        path = self._folder / "jobs.jsonl"
        path.write_text('{"task": "jobs.add", "args": [1]}\n' * 2)
        return str(path)

    def _make_group(self) -> str:
        return str(self.run("groups run {group_file}")["id"])

    def _make_schedules_file(self) -> str:
        content = {"name": self["n"], "task": "jobs.add", "args": [1], "every": "2h"}
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
        return str(self.run("tokens create --for alice")["id"])

    def _make_delivery(self) -> str:
        [(hook,)] = self.sql("SELECT id FROM pgbeat.webhooks WHERE name = %s", self["n"])
        return make_delivery(self.sql, hook, "failed")


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    """Yields a receiver of webhooks."""
    running = Receiver()
    yield running
    running.close()


@pytest.fixture
def on_stage(
    web: Web, sql: Sql, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Stage]:
    """Returns what makes a stage of a face."""
    monkeypatch.delenv("PGBEAT_ADMIN", raising=False)
    return lambda face="cli": Stage(face, web, sql, tmp_path, receiver.url())


@pytest.fixture
def stage(on_stage: Callable[..., Stage]) -> Stage:
    """Returns the command line's stage."""
    return on_stage()


@pytest.mark.parametrize("command", CHANGING)
def test_each_change_is_noted(
    on_stage: Callable[..., Stage], sql: Sql, database: str, command: str
) -> None:
    """By its actor and way, and with the same fields whichever face made it."""
    case = CHANGING[command]
    fields = []
    for face in ("cli", "words", "api", "page"):
        origin = "cli" if face == "words" else face
        if not getattr(case, origin) or (face == "words" and command == "import celery"):
            continue
        stage = on_stage(face)
        for line in case.first:
            stage.run(line)
        if command == "prune":
            make_job(sql, "failed", created_at="2026-01-01", finished_at="2026-01-01")
        stage.filled([*case[:4]])
        [(mark,)] = sql("SELECT coalesce(max(id), 0) FROM pgbeat.audit")
        if command == "import celery":  # without the app, whose entries come by themselves
            assert run(database, *stage.filled(case.cli).split(" ")).exit_code == 0
        else:
            answer = stage.do(case)
            row = answer[0] if isinstance(answer, list) else answer
            if face == "cli" and isinstance(row, dict):  # it prints the row as it is then
                changed = stage.filled(case.after or {})
                same = {key for key in changed if isinstance(row.get(key), str | int)}
                assert {key: row[key] for key in same} == {key: changed[key] for key in same}
        rows = sql(
            "SELECT actor, origin, verb, kind, subject, before, after FROM pgbeat.audit "
            "WHERE id > %s",
            mark,
        )
        assert len(rows) == case.times, rows
        for actor, by, verb, kind, subject, before, made in rows:
            assert (actor, by) == (stage["me"], origin)
            subject = "?" if case.note.endswith("?") else subject
            assert f"{verb} {kind} {subject}" == stage.filled(case.note)
            assert (before or {}).items() >= stage.filled(case.before or {}).items()
            assert (made or {}).items() >= stage.filled(case.after or {}).items()
        fields.append((set(before or ()), set(made or ())))
    assert all(each == fields[0] for each in fields), fields


@pytest.mark.parametrize(
    "command", [command for command, case in CHANGING.items() if "--yes" in case.cli]
)
def test_nothing_is_removed_unless_somebody_says_yes(stage: Stage, sql: Sql, command: str) -> None:
    case = CHANGING[command]
    for line in case.first:
        stage.run(line)
    given = stage.filled(case.cli.replace(" --yes", "")).split(" ")
    before = sql("SELECT count(*) FROM pgbeat.audit")
    nobody = run_with(stage.app, *given)
    assert nobody.exit_code == 2
    assert "the question got no answer, and --yes was not given" in nobody.output
    no = run_with(stage.app, *given, answer="n\n")
    assert re.search(r"\[y/N\]: n\nNothing is \w+\.\n$", no.stdout), no.stdout
    assert sql("SELECT count(*) FROM pgbeat.audit") == before
    assert run_with(stage.app, *given, answer="y\n").exit_code == 0
    assert sql("SELECT count(*) FROM pgbeat.audit") != before


def test_what_an_import_makes_of_the_apps_code_is_noted(stage: Stage, sql: Sql) -> None:
    entry = {"task": "jobs.add", "schedule": timedelta(hours=1), "args": (1,)}
    stage.app.conf.beat_schedule = {"n": entry}
    file = stage["beat_file"]
    for _ in range(2):  # the second time there is nothing to do
        stage.run(f"import celery --from {file}")
    [row] = sql("SELECT verb, subject, before, after FROM pgbeat.audit WHERE kind = 'schedule'")
    assert row[:3] == ("create", "n", None)
    assert row[3].items() >= {"source": "code", "task": "jobs.add", "every": 3600}.items()


def test_what_changes_nothing_leaves_nothing(stage: Stage, sql: Sql) -> None:
    stage.run("add s --task tests.add --every 1h")
    stage.run("lanes set l --limit 1")
    commands = [
        "add n --task tests.add --every 1h --dry-run",
        "update s --every 3h --dry-run",
        "update s --every 1h",
        "remove s --dry-run",
        "enable s",
        "resume s",
        "calendars add n --weekdays sat --dry-run",
        "lanes set n --limit 1 --dry-run",
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
        "jobs run tests.add --dry-run",
        "groups run {group_file} --dry-run",
        "jobs delete {ended} --dry-run",
        "webhooks redeliver {delivery} --dry-run",
        "tokens revoke {token} --dry-run",
        "backfill s --from {earlier} --dry-run",
    ]
    stage.run(HOOK)
    given = [stage.filled(command) for command in commands]
    tables = ("audit", "schedules", "calendars", "lanes", "templates", "jobs", "deliveries")
    everything = [f"SELECT to_jsonb(t) - 'updated_at' FROM pgbeat.{table} t" for table in tables]
    before = [sql(query) for query in everything]
    for command in given:
        result = run_with(stage.app, *command.split(" "))
        assert result.exit_code in (0, 3), (command, result.output)
        assert [sql(query) for query in everything] == before, command


def test_a_change_that_fails_leaves_nothing(stage: Stage, sql: Sql) -> None:
    stage.run(ADD)
    stage.run(LANE)
    mark = sql("SELECT count(*) FROM pgbeat.audit")
    with refusing(sql, "pgbeat.audit", "53100"):
        for command in ("pause {n}", "trigger {n}", "jobs run tests.add", "lanes pause {n}"):
            with pytest.raises(AssertionError):
                stage.run(command)
    assert sql("SELECT paused_at FROM pgbeat.schedules") == [(None,)]
    assert sql("SELECT paused_at FROM pgbeat.lanes") == [(None,)]
    assert sql("SELECT 1 FROM pgbeat.jobs") == []
    assert sql("SELECT count(*) FROM pgbeat.audit") == mark
