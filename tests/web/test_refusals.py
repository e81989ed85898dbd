"""What is wrong is refused with the same field and code, whichever face is asked."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from pgbeat.testing.databases import Databases
from tests.support.command_line import Sql
from tests.support.databases import statements
from tests.support.faces import KINDS, NOUNS, OPTIONS, ask_api, ask_cli, ask_page
from tests.support.jobs import make_app
from tests.support.pages import Page, html
from tests.support.rows import (
    make_calendar,
    make_job,
    make_lane,
    make_schedule,
    make_template,
    make_webhook,
)
from tests.support.web import Web, errors, opened, problem
from tests.web.api.made_jobs import NOBODY as ID
from tests.web.api.test_permissions import TABLE

Problems = list[tuple[str, str]]


@pytest.fixture(scope="module")
def dsn(pgbeat_databases: Databases) -> Iterator[str]:
    """DSN of a database for all tests, which write nothing."""
    with pgbeat_databases.lent() as dsn:
        yield dsn


@pytest.fixture(scope="module")
def sql(dsn: str) -> Iterator[Sql]:
    """Runs statements; there is one thing of each kind."""
    with statements(dsn) as run:
        make_calendar(run, "there", weekdays=["sat"])
        make_schedule(run, "there", cron="0 * * * *", next_run="9999-01-01Z", timezone="UTC")
        make_lane(run, "there")
        make_template(run, "there")
        policy = {"template": "there", "lane": "there"}
        make_schedule(run, "user", after="there", calendar="there", job_policy=policy)
        run("INSERT INTO kombu_queue (name) VALUES ('there')")
        make_webhook(run, "there")
        yield run


@pytest.fixture(scope="module")
def web(dsn: str) -> Iterator[Web]:
    """Serves an app with tasks."""
    app = make_app(dsn)
    app.conf.pgbeat_sql_roles = ["reports"]
    app.conf.pgbeat_sql_url = "postgresql://sql_jobs@127.0.0.1:9/x"
    with opened(app, webhook_private=False) as found:
        yield found


class Case(NamedTuple):
    """Values that are wrong, and the field and the code of the problem."""

    values: dict[str, Any]
    field: str
    code: str = "malformed"
    #: The faces that can be asked; a page leaves out what is empty, and has no field for some.
    faces: str = "api cli page"


OWN = {"job_policy": {"retry_base": 60, "retry_cap": 59}}
#: A job that runs a statement in SQL.
STATEMENT: dict[str, Any] = {"task": "pgbeat.sql", "args": ["SELECT 1"]}
CASES: dict[str, list[Case]] = {
    "schedule": [
        Case({"cron": "61 * * * *"}, "cron"),
        Case({"cron": "every day"}, "cron"),
        Case({"cron": 5}, "cron", faces="api"),
        Case({"timezone": "Oslo"}, "timezone", "unknown"),
        Case({"every": "1 month"}, "every"),
        Case({"every": True}, "every", faces="api"),
        Case({"every": 1e300}, "every"),
        Case({"every": 0}, "every", "out_of_range"),
        Case({"every": -5}, "every", "out_of_range"),
        Case({"every": "1 hour", "solar": "noon 0 0"}, "solar", "conflict"),
        Case({"once_at": "2026-12-24T09:00"}, "once_at", faces="api"),
        Case({"once_at": "soon"}, "once_at"),
        Case({"once_at": "0001-01-01T00:00:00+14:00"}, "once_at", "out_of_range"),
        Case({"solar": "lunch 0 0"}, "solar"),
        Case({"rrule": "FREQ=SOMETIMES"}, "rrule"),
        Case({"task": "tests.ad"}, "task", "unknown"),
        Case({"launcher": "os.system"}, "launcher", "unknown"),
        Case({"args": [1, 2, 3]}, "args"),
        Case({"args": {}}, "args"),
        Case({"kwargs": {"z": 1}}, "kwargs"),
        Case({"kwargs": []}, "kwargs"),
        Case({"options": {"prioriti": 1}}, "options", "unknown_field"),
        Case({"condition_sql": "SELEC 1"}, "condition_sql"),
        Case({"condition_sql": "DELETE FROM pgbeat.schedules"}, "condition_sql"),
        Case({"max_retries": -1}, "max_retries", "out_of_range"),
        Case({"max_retries": 2**31}, "max_retries", "out_of_range"),
        Case({"max_retries": 2**63}, "max_retries", "out_of_range"),
        Case({"max_runs": "many"}, "max_runs"),
        Case({"catch_up": "some"}, "catch_up", "unknown"),
        Case({"overlap": "maybe"}, "overlap", "unknown"),
        Case({"retry_base": 100, "retry_cap": 99}, "retry_cap", "out_of_range"),
        Case({"retry_factor": 0.5}, "retry_factor", "out_of_range"),
        Case({"starts_at": "tomorrow"}, "starts_at"),
        Case({**STATEMENT, "kwargs": {"role": "postgres"}}, "kwargs.role", "unknown"),
        Case(
            {
                "task": "pgbeat.sql",
                "kwargs": {"role": "postgres"},
                "job_policy": {"template": "there"},
            },
            "kwargs.role",
            "unknown",
            "api",
        ),
        Case({"grace": "soon"}, "grace"),
        Case({"calendar": "nope"}, "calendar", "unknown"),
        Case({"job_policy": {"lane": 5}}, "job_policy.lane", faces="api"),
        Case({"job_policy": {"lanes": "x"}}, "job_policy.lanes", "unknown_field", "api"),
        Case({"job_policy": {"priority": 256}}, "job_policy.priority", "out_of_range"),
        Case(OWN, "job_policy.retry_cap", "out_of_range"),
        Case({"job_policy": {"tags": [""]}}, "job_policy.tags", faces="api cli"),
        Case({"job_policy": {"resources": {"gpu": -1}}}, "job_policy.resources"),
        Case({"next_run": "2026-01-01T00:00:00Z"}, "next_run", "unknown_field", "api"),
        Case({"owner": "a\0b"}, "", "invalid", "api page"),
        Case({"labels": {"a b": "c"}}, "labels"),
        Case({"cron": None}, "", "required", "api cli"),
        Case({"kwargs": {"x": "\0"}}, "", "invalid_schedule"),
    ],
    "job": [
        Case({"task": None}, "task", "required"),
        Case({"task": "jobs.ad"}, "task", "unknown"),
        Case({"task": "jobs.add\0"}, "task", "unknown"),
        Case({"task": None, "template": "none"}, "template", "unknown"),
        Case({"args": []}, "args"),
        Case({"args": [1, 2, 3]}, "args"),
        Case({"args": {"x": 1}}, "args"),
        Case({"kwargs": [1]}, "kwargs"),
        Case({"lane": "nope"}, "lane", "unknown"),
        Case({"priority": 256}, "priority", "out_of_range"),
        Case({"priority": -1}, "priority", "out_of_range"),
        Case({"priority": "high"}, "priority"),
        Case({"max_attempts": 0}, "max_attempts", "out_of_range"),
        Case({"retry_base": 100, "retry_cap": 9}, "retry_cap", "out_of_range"),
        Case({"retry_base": -1}, "retry_base", "out_of_range"),
        Case({"tags": [""]}, "tags", faces="api cli"),
        Case({"resources": {"gpu": -1}}, "resources"),
        Case({"unique_key": ""}, "unique_key", faces="api cli"),
        Case({"unique_key": "content:ab"}, "unique_key", "reserved"),
        Case({"options": {"prio": 1}}, "options", "unknown_field"),
        Case({"options": {"countdown": 1}}, "options", "conflict"),
        Case({"options": {"serializer": "nope"}}, "", "invalid_job"),
        Case({"run_at": "2026-12-24T09:00:00"}, "run_at", faces="api"),
        Case({"run_at": "soon"}, "run_at"),
        Case({"run_at": "2999-01-01T00:00:00Z", "countdown": 5}, "run_at", "conflict"),
        Case({"countdown": "soon"}, "countdown"),
        Case({"countdown": 1e300}, "countdown"),
        Case({"countdown": 3e11}, "countdown", "out_of_range"),
        Case({"args": ["\0"]}, "", "unstorable"),
        Case({"kwargs": {"__type__": "x", "__value__": 1}}, "kwargs"),
        Case({"queue": "q" * 201}, "queue", "too_long", "api page"),
    ],
    "template": [
        Case({"task": None}, "task", "required"),
        Case({"task": "jobs.ad"}, "task", "unknown"),
        Case({"args": {}}, "args"),
        Case({"kwargs": []}, "kwargs"),
        Case({"options": {"prio": 1}}, "options", "unknown_field"),
        Case({"options": {"eta": 1}}, "options.eta", "conflict"),
        Case({"job_policy": {"lanes": "x"}}, "job_policy.lanes", "unknown_field", "api"),
        Case({"job_policy": {"template": "x"}}, "job_policy.template", "conflict", "api"),
        Case({"job_policy": {"lane": "x"}}, "job_policy.lane", "unknown"),
        Case({"job_policy": {"priority": "high"}}, "job_policy.priority"),
        Case({"job_policy": {"priority": 256}}, "job_policy.priority", "out_of_range"),
        Case({"job_policy": {"retry_cap": "soon"}}, "job_policy.retry_cap"),
        Case(OWN, "job_policy.retry_cap", "out_of_range"),
        Case({"job_policy": {"resources": {"gpu": -1}}}, "job_policy.resources"),
        Case({"description": "\0"}, "description"),
        Case({"kwargs": {"x": "\0"}}, "kwargs", faces="api page"),
        Case({**STATEMENT, "kwargs": {"role": "postgres"}}, "kwargs.role", "unknown"),
        Case({**STATEMENT, "args": ["SELECT 1", "postgres"]}, "kwargs.role", "unknown"),
        Case({**STATEMENT, "kwargs": {"timeout": "1 hour"}}, "kwargs.timeout", "out_of_range"),
    ],
    "lane": [
        Case({"max_running": -1}, "max_running", "out_of_range"),
        Case({"max_running": 2**40}, "max_running", "out_of_range"),
        Case({"max_running": "many"}, "max_running"),
        Case({"rate": "often"}, "rate"),
        Case({"rate": "10"}, "rate"),
        Case({"rate_key": "task"}, "rate_key", "conflict"),
        Case({"rate_for": "1 hour"}, "rate_for", "conflict"),
        Case({"rate": "1/m", "rate_for": "soon"}, "rate_for"),
        Case({"max_per_key": 2}, "max_per_key", "conflict", "api page"),
        Case({"options": {"x": 1}}, "options", "conflict"),
        Case({"options": []}, "options", faces="api cli"),
        Case({"policy": "nope"}, "policy", "unknown"),
        Case({"policy": "resources", "options": {"gpu": "x"}}, "options"),
    ],
    "webhook": [
        Case({"url": "ftp://example.com"}, "url"),
        Case({"url": "https://user:pw@example.com/"}, "url"),
        Case({"url": "not a url"}, "url"),
        Case({"url": "https://example.com/\r\nX-Evil: 1"}, "url"),
        Case({"url": "https://e.com/" + "x" * 2000}, "url", "too_long"),
        Case({"url": "http://127.0.0.1:9/x"}, "url"),
        Case({"events": []}, "events", "required", "api page"),
        Case({"events": ["job.faild"]}, "events", "unknown", "api cli"),
        Case({"events": "all"}, "events", faces="api"),
        Case({"secret": "short"}, "secret", faces="api"),
        Case({"schedules": ["x" * 256]}, "schedules"),
        Case({"tasks": ["t"] * 51}, "tasks", "out_of_range"),
        Case({"labels": {"a b": "c"}}, "labels", faces="api page"),
    ],
    "backfill": [
        Case({"start": None}, "start", "required"),
        Case({"start": "2026-01-01T00:00:00"}, "start", faces="api"),
        Case({"start": "yesterday"}, "start"),
        Case({"start": "0001-01-01T00:00:00Z"}, "start", "out_of_range", "api page"),
        Case({"start": "2999-01-01T00:00:00Z", "end": None}, "start", "out_of_range"),
        Case({"end": "2999-01-01T00:00:00Z"}, "end", "out_of_range"),
        Case({"end": "2025-01-01T00:00:00Z"}, "end", "out_of_range"),
        Case({"limit": 0}, "limit", "out_of_range"),
        Case({"limit": 3}, "limit", "out_of_range"),
    ],
}
for noun in ("schedule", "job"):
    CASES[noun] += [
        Case({**STATEMENT, "kwargs": {"role": "postgres"}}, "kwargs.role", "unknown"),
        Case({**STATEMENT, "kwargs": {"timeout": "1 hour"}}, "kwargs.timeout", "out_of_range"),
        Case({**STATEMENT, "args": [" "]}, "kwargs.statement"),
        Case({**STATEMENT, "args": []}, "args"),
    ]
#: Names that no thing has, but jobs, which have none.
for noun in ("schedule", "template", "webhook"):
    CASES[noun] += [
        Case({"name": "a/b"}, "name"),
        Case({"name": " a"}, "name", faces="api cli"),
        # Browsers take these out of an address.
        Case({"name": "."}, "name"),
        Case({"name": ".."}, "name"),
        Case({"name": ""}, "name", "too_short", "api page"),
        Case({"name": "x" * 201}, "name", "too_long"),
        Case({"name": "there"}, "", "already_exists", "api cli" * (noun != "template")),
    ]


def by_api(web: Web, route: str, values: dict[str, Any]) -> Problems:
    """Returns the problems that an endpoint finds."""
    answer = ask_api(web, route, values)
    assert 400 <= answer.status_code < 500, answer.text
    return errors(answer, answer.status_code)


def by_cli(web: Web, noun: str, command: str, values: dict[str, Any]) -> Problems:
    """Returns the problems that a command finds; what click itself refuses is malformed."""
    result = ask_cli(web, noun, command, values)
    assert result.exit_code in (1, 2), result.output
    found = json.loads(result.stdout)["error"]["problems"]
    if "Usage:" not in result.stderr:
        return [(each["field"].rpartition(".")[2], each["code"]) for each in found]
    assert found[0]["field"] and found[0]["code"] in ("malformed", "required")
    [flag] = re.findall(r"(?:Invalid value for|Missing option) '--([\w-]+)'", result.stderr)
    names = OPTIONS.get(flag, (flag.removeprefix("job-").replace("-", "_"),))
    return [(next(name for name in names if name in values or len(names) == 1), "malformed")]


def by_page(web: Web, path: str, values: dict[str, Any]) -> list[str]:
    """Returns the fields beside which a page shows what is wrong."""
    answer = ask_page(web, path, values)
    assert 400 <= answer.status_code < 500, answer.text
    return list(Page(answer.text).wrong)


@pytest.mark.parametrize(
    ("noun", "case"),
    [(noun, case) for noun, cases in CASES.items() for case in cases],
    ids=lambda value: value if isinstance(value, str) else str(value.values)[:60],
)
def test_every_face_names_the_same_field_and_code(
    web: Web, sql: Sql, noun: str, case: Case
) -> None:
    """And writes nothing."""
    tables = ("audit", "schedules", "jobs", "templates", "lanes", "webhooks", "ticks")
    written = " UNION ALL ".join(f"SELECT to_jsonb(t) FROM pgbeat.{table} t" for table in tables)
    of, before = NOUNS[noun], sql(written)
    new = {name: value for name, value in (of.good | case.values).items() if value is not None}
    asked = [new]
    if not {"name"} & case.values.keys() and None not in case.values.values():
        asked.append(new if noun == "template" else case.values)
    if KINDS & case.values.keys():
        new.pop("cron", None) if "cron" not in case.values else None
    shown = "timetable" if case.field in KINDS else case.field or "name" * ("name" in case.values)
    shown = shown if "job_policy" in shown else shown.partition(".")[0]
    for number, values in enumerate(asked[: len(of.api)]):
        if "api" in case.faces:
            assert by_api(web, of.api[number], values) == [(case.field, case.code)]
        if "cli" in case.faces:
            field = case.field.rpartition(".")[2]
            found = by_cli(web, noun, of.cli[number], values)
            assert found in ([(field, case.code)], [(field, "malformed")])
        if "page" in case.faces:
            beside = by_page(web, of.pages[number], values)
            assert beside == [shown.replace(".", "-")] * bool(shown)
    assert sql(written) == before


@pytest.mark.parametrize(
    ("state", "verb"),
    [
        ("completed", "cancel"),
        ("completed", "retry"),
        ("pending", "retry"),
        ("running", "pause"),
        ("pending", "resume"),
        ("pending", "approve"),
        ("skipped", "pause"),
        ("running", "delete"),
    ],
)
def test_a_jobs_state_refuses_the_same_verbs(web: Web, sql: Sql, state: str, verb: str) -> None:
    job = make_job(sql, state)
    route = f"DELETE /jobs/{job}" if verb == "delete" else f"POST /jobs/{job}/{verb}"
    assert by_api(web, route, {}) == [("", "invalid_transition")]
    yes = ["--yes"] * (verb == "delete")
    assert by_cli(web, "", " ".join(["jobs", verb, job, "--admin", *yes]), {}) == [
        ("", "invalid_transition")
    ]
    page = web.browser(web.token("root", "admin"))
    answer = page.post(f"/console/jobs/{job}", data={"do": verb})
    assert f"is {state} and can't be" in html(answer, 409).alert
    assert sql("SELECT state FROM pgbeat.jobs WHERE id = %s", job) == [(state,)]
    assert sql("SELECT 1 FROM pgbeat.audit") == []


@pytest.mark.parametrize("noun", ["calendar", "lane", "template"])
def test_what_a_schedule_names_is_not_removed(web: Web, sql: Sql, noun: str) -> None:
    assert by_api(web, f"DELETE /{noun}s/there", {}) == [("", "in_use")]
    for more in ("--yes", "--dry-run") if noun != "lane" else ("--yes",):
        assert by_cli(web, noun, f"{noun}s remove there {more}", {}) == [("", "in_use")]
    page = web.browser(web.token("root", "admin"))
    answer = page.post(f"/console/{noun}s/there", data={"do": "delete"})
    assert "'user'" in html(answer, 422).words
    assert sql(f"SELECT count(*) FROM pgbeat.{noun}s") == [(1,)]


#: What routes about a name begin with.
NAMED = ("/admin/scheduled-jobs", "/calendars", "/lanes", "/queues", "/templates", "/webhooks")
BODIES: dict[str, Any] = {
    "POST /admin/scheduled-jobs/{name}/backfill": NOUNS["backfill"].good,
    "DELETE /lanes/{name}/reservations/{number}": None,
}


@pytest.mark.parametrize(
    "route",
    [
        route
        for route in TABLE
        if re.sub("^[A-Z]+ (/console)?", "", route).startswith(NAMED)
        and re.search(r"{name(:path)?}", route)
        and not re.match("PUT /[a-z]+/{name}$|DELETE /lanes/{name}/res", route)
    ],
)
@pytest.mark.usefixtures("sql")
def test_the_nearest_name_is_told(web: Web, route: str) -> None:
    method, path = route.split(" ")
    body = BODIES.get(route, TABLE[route][1])
    path = re.sub(
        r"{(name(:path)?|\w+_id)}", lambda found: {"name": "thre"}.get(found[1][:4], ID), path
    )
    if "/console/" in path:
        page = web.browser(web.token("root", "admin"))
        answer = page.request(method, path, data={"do": "delete"} if method == "POST" else None)
        assert "did you mean &#39;there&#39;?" in answer.text
        assert answer.status_code == 404
    else:
        said = problem(web.admin.request(method, path, json=body), 404)
        assert re.fullmatch(r"there is no \w+ 'thre'; did you mean 'there'\? `pgbeat .*", said)
        nul = web.admin.request(method, path.replace("thre", "%00"), json=body)
        assert "NUL" in problem(nul, 422)


def test_all_mistakes_are_found_at_once(web: Web, sql: Sql) -> None:
    wrong: dict[str, Any] = {
        "cron": "61 * * * *",
        "timezone": "Oslo",
        "task": "tests.ad",
        "calendar": "nope",
        "condition_sql": "SELEC 1",
        "job_policy": {"priority": 300, "retry_cap": "soon"},
    }
    typed = {"max_runs": "many", "grace": "soon", "catch_up_limit": 0}
    fields = {*wrong, "job_policy.priority", "job_policy.retry_cap"} - {"job_policy"}
    of = NOUNS["schedule"]
    for number, values in enumerate((wrong | {"name": "a/b"}, wrong)):
        expected = fields | ({"name"} & values.keys())
        assert {field for field, _ in by_api(web, of.api[number], values)} == expected
        expected |= typed.keys()
        names = {field.rpartition(".")[2] for field in expected}
        found = by_cli(web, "schedule", of.cli[number], values | typed)
        assert {field for field, _ in found} == names
        shown = {field.replace(".", "-").replace("cron", "timetable") for field in expected}
        assert set(by_page(web, of.pages[number], values | typed)) == shown
    assert sql("SELECT 1 FROM pgbeat.audit") == []
