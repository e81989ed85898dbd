"""The console's pages, as a browser without scripts has them."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from pgbeat.beat.scheduler import Scheduler
from pgbeat.web.pages import humanize as words
from tests.support.pages import EVIL, after, html
from tests.support.rows import make_job, make_schedule
from tests.support.web import Web, opened

Sql = Callable[..., list[tuple[Any, ...]]]
Beat = Callable[..., Scheduler]

LIST = "/console/schedules"


@pytest.fixture
def schedule(sql: Sql) -> Callable[..., int]:
    """Adds a schedule of every six hours, unless told otherwise."""
    return partial(make_schedule, sql, cron="0 */6 * * *")


@pytest.fixture
def job(sql: Sql) -> Callable[..., str]:
    """Makes a job that is completed, unless told otherwise."""
    return partial(
        make_job, sql, state="completed", task="tests.add", created_by="user:root",
        job_source="user_api", started_at="2026-01-01T00:00:00Z",
        finished_at="2026-01-01T00:00:01Z",
    )  # fmt: skip


# -- coming in -----------------------------------------------------------------------------------


def test_who_is_not_known_signs_in_and_gets_where_they_wanted(web: Web) -> None:
    nobody = web.client(headers={"Sec-Fetch-Site": "same-origin"})
    answer = nobody.get(f"{LIST}?state=paused")
    assert answer.status_code == 303
    form = html(nobody.get(answer.headers["location"]))
    assert 'name="next" value="/console/schedules?state=paused"' in form
    answer = nobody.post("/login", data={"token": "pgb_none", "next": LIST})
    assert "This token is invalid" in html(nobody.get(answer.headers["location"]))
    token = web.token("root", "admin")
    answer = nobody.post("/login", data={"token": token, "next": f"{LIST}?state=paused"})
    assert answer.headers["location"] == f"{LIST}?state=paused"
    assert "<h1>Schedules</h1>" in html(nobody.get(answer.headers["location"]))


def test_the_start_leads_to_what_one_may_see(web: Web, page: Any) -> None:
    assert page.get("/").headers["location"] == LIST
    user = web.browser(web.token("alice"))
    assert user.get("/").headers["location"] == "/console/jobs"
    text = html(user.get("/console/jobs"))
    assert 'href="/console/schedules"' not in text
    said = html(user.get(LIST), 403).words
    assert "that is for administrators" in said


@pytest.mark.parametrize(
    "path",
    [LIST, f"{LIST}/s", "/console/lanes", "/console/lanes/l", "/console/queues", "/console/beats",
     "/console/audit"],
)  # fmt: skip
def test_pages_that_are_for_administrators(web: Web, path: str) -> None:
    assert web.nobody.get(path).status_code == 303
    assert web.browser(web.token("alice")).get(path).status_code == 403


@pytest.mark.parametrize("path", ["/console/nowhere", "/console/jobs/a%2Fb", "/console/jobs/1",
                                  f"{LIST}/none"])  # fmt: skip
def test_the_page_of_what_is_not_there_leads_on(web: Web, page: Any, path: str) -> None:
    text = html(page.get(path), 404)
    assert "<h1>Not Found</h1>" in text
    assert 'href="/console/schedules"' in text
    assert "Sign out" in text
    user = web.browser(web.token("alice"))
    said = html(user.get(path), 403 if path.startswith(LIST) else 404)
    assert 'href="/console/jobs"' in said
    assert 'href="/console/schedules"' not in said
    answer = web.nobody.get(path)
    assert answer.headers["location"].startswith("/login?next=")


def test_a_slash_too_many_is_left_out(page: Any) -> None:
    answer = page.get("/console/jobs/?state=failed")
    assert answer.headers["location"] == "/console/jobs?state=failed"


@pytest.mark.parametrize("path", [f"{LIST}/s", "/console/lanes/l", "/console/queues",
                                  "/console/dead"])  # fmt: skip
def test_changes_that_are_for_administrators(web: Web, path: str) -> None:
    assert web.browser(web.token("alice")).post(path, data={"do": "pause"}).status_code == 403
    assert web.nobody.post(path, data={"do": "pause"}).status_code == 303


def test_another_site_changes_nothing(web: Web, schedule: Any, sql: Sql) -> None:
    schedule("s")
    other = web.browser(web.token("root", "admin"))
    other.headers["Sec-Fetch-Site"] = "cross-site"
    assert other.post(f"{LIST}/s", data={"do": "pause"}).status_code == 403
    assert sql("SELECT paused_at FROM pgbeat.schedules") == [(None,)]


@pytest.mark.parametrize("path", [LIST, "/console/jobs", "/console/lanes", "/console/queues",
                                  "/console/beats", "/console/audit"])  # fmt: skip
def test_pages_without_anything_say_what_to_do(page: Any, path: str) -> None:
    text = html(page.get(path))
    assert 'class="empty"' in text
    assert text.has_no_script_inside()


def test_the_files_are_there(page: Any) -> None:
    for name in ("console.css", "console.js", "icon.svg"):
        answer = page.get(f"/static/{name}")
        assert answer.status_code == 200
        assert answer.headers.get("cache-control") != "no-store"


# -- schedules -----------------------------------------------------------------------------------


def test_the_list_says_what_ran_what_was_skipped_and_what_failed(
    page: Any, schedule: Any, sql: Sql, beat: Beat
) -> None:
    schedule("runs", cron=None, every="1 hour")
    schedule("skips", cron=None, every="1 hour", condition_sql="SELECT false")
    schedule("fails", cron=None, every="1 hour", condition_sql="SELECT * FROM nothing")
    sql("UPDATE pgbeat.schedules SET next_run = now() - interval '1 second' RETURNING id")
    beat().run_due()
    said = html(page.get(LIST)).words
    assert "1 launched" in said
    assert "1 skipped 1 × " in said
    assert "1 not launched" in said
    assert "fails : " in said
    assert "nothing" in said
    assert "retrying failed 1 of 5 times" in said
    assert "every hour" in said
    text = html(page.get(LIST))
    assert "Last 1 time: 0 good, 0 skipped, 1 bad" not in text
    assert "Last 1 time: 0 good, 0 skipped, 1 failed; the last one failed:" in text
    assert "Last 1 time: 0 good, 1 skipped, 0 failed" in text


def test_the_list_is_searched_filtered_and_paged(page: Any, schedule: Any) -> None:
    for number in range(30):
        schedule(f"s{number:02}", enabled=number != 3)
    text = html(page.get(LIST))
    assert "s24" in text
    assert "s25" not in text
    second = html(page.get(text.next))
    assert ">s25<" in second
    assert ">s29<" in second
    assert 'rel="next"' not in second
    found = html(page.get(LIST, params={"search": "S1"}))
    assert len(found.rows) == 10
    found = html(page.get(LIST, params={"state": "disabled"}))
    assert re.findall(r"\bs\d\d\b", found.words) == ["s03"]
    assert "No schedule" in html(page.get(LIST, params={"search": "nowhere"}))


def test_no_list_asks_more_for_more_rows(page: Any, web: Web, schedule: Any, job: Any,
                                         sql: Sql) -> None:  # fmt: skip
    def statements(path: str) -> int:
        with web.counted() as sent:
            html(page.get(path))
        return len(sent)

    def fill(count: int) -> None:
        for number in range(count):
            name = f"s{uuid4().hex[:8]}"
            schedule_id = schedule(name)
            job_id = job(state="running", finished_at=None, schedule=name, schedule_id=schedule_id)
            sql(
                "INSERT INTO pgbeat.ticks (schedule_id, schedule, due_at, outcome, job_id)"
                " VALUES (%s, %s, now(), 'launched', %s) RETURNING id", schedule_id, name, job_id,
            )  # fmt: skip
            sql(f"INSERT INTO pgbeat.lanes (name) VALUES ('l{number}') ON CONFLICT DO NOTHING"
                " RETURNING name")  # fmt: skip

    paths = [LIST, "/console/jobs", "/console/lanes", "/console/audit", "/console/queues"]
    fill(2)
    html(page.get(LIST))  # notes that the token is used
    few = {path: statements(path) for path in paths}
    fill(15)
    assert {path: statements(path) for path in paths} == few
    assert max(few.values()) <= 15


def test_a_schedule_shows_its_decisions(page: Any, schedule: Any, sql: Sql, beat: Beat) -> None:
    schedule("nightly", condition_sql="SELECT false", owner="data", timezone="Europe/Oslo")
    sql("UPDATE pgbeat.schedules SET next_run = now() - interval '1 second' RETURNING id")
    beat().run_due()
    said = html(page.get(f"{LIST}/nightly")).words
    assert "every 6 hours (Europe/Oslo) 0 */6 * * *" in said
    assert "SELECT false" in said
    assert "skipped" in said
    assert "Comes next 2" in said
    assert "there is no schedule 'nigthly'; did you mean" in (
        html(page.get(f"{LIST}/nigthly"), 404).words
    )


def test_a_condition_is_tried(page: Any, schedule: Any, sql: Sql) -> None:
    schedule("s", condition_sql="SELECT 1 = 2")
    said = html(page.post(f"{LIST}/s", data={"do": "check"})).words
    assert "If it were due now skipped" in said
    sql("UPDATE pgbeat.schedules SET condition_sql = 'SELECT true' RETURNING id")
    said = html(page.post(f"{LIST}/s", data={"do": "check"})).words
    assert "If it were due now launched" in said
    assert sql("SELECT count(*) FROM pgbeat.ticks") == [(0,)]


def test_a_long_error_in_any_script_is_said(page: Any, schedule: Any) -> None:
    words = "\N{ROCKET}" * 700
    schedule("s", condition_sql=f"SELECT CAST('{words}' AS boolean)")
    answer = page.post(f"{LIST}/s", data={"do": "trigger"})
    assert len(answer.headers["set-cookie"]) < 4096
    assert "\N{ROCKET}" * 400 in page.get(f"{LIST}/s").text.partition("said bad")[2]


def test_a_schedule_is_steered(page: Any, schedule: Any, sql: Sql) -> None:
    schedule("s")

    def state() -> tuple[Any, ...]:
        return sql("SELECT enabled, paused_at IS NOT NULL FROM pgbeat.schedules")[0]

    for verb, wanted in (
        ("pause", (True, True)), ("resume", (True, False)),
        ("disable", (False, False)), ("enable", (True, False)),
    ):  # fmt: skip
        said = after(page, page.post(f"{LIST}/s", data={"do": verb})).words
        assert f"Schedule 's' {verb.removesuffix('e')}" in said
        assert state() == wanted
    said = after(page, page.post(f"{LIST}/s", data={"do": "trigger"})).words
    assert "triggered manually" in said
    assert sql("SELECT trigger, outcome FROM pgbeat.ticks") == [("manual", "launched")]
    after(page, page.post(f"{LIST}/s", data={"do": "delete"}))
    assert sql("SELECT count(*) FROM pgbeat.schedules") == [(0,)]
    verbs = sql("SELECT verb, actor, origin FROM pgbeat.audit ORDER BY id")
    names = ["pause", "resume", "disable", "enable", "trigger", "delete"]
    assert verbs == [(name, "user:root", "page") for name in names]
    assert "user:root" in html(page.get("/console/audit"))
    assert html(page.post(f"{LIST}/s", data={"do": "pause"}), 404)
    assert "be done here" in html(page.post(f"{LIST}/s", data={"do": "fly"}), 422)


def test_schedules_are_paused_with_a_reason_and_together(
    page: Any, schedule: Any, sql: Sql
) -> None:
    for name in ("a", "b"):
        schedule(name)

    def reasons() -> list[Any]:
        return sql(
            "SELECT paused_at IS NOT NULL, paused_reason FROM pgbeat.schedules ORDER BY name"
        )

    said = after(page, page.post(f"{LIST}/a", data={"do": "pause", "reason": "broken"})).words
    assert "broken" in said
    said = after(page, page.post(LIST, data={"do": "pause", "reason": "moving"})).words
    assert "Paused 1 schedule." in said
    assert reasons() == [(True, "broken"), (True, "moving")]
    assert "Resumed 2 schedules." in after(page, page.post(LIST, data={"do": "resume"})).words
    assert reasons() == [(False, None)] * 2
    assert "be done here" in html(page.post(LIST, data={"do": "fly"}), 422)


def test_a_cron_is_edited_wrongly_and_rightly(page: Any, schedule: Any, sql: Sql) -> None:
    schedule("s", condition_sql="SELECT true", jitter="2 minutes", kwargs='{"a": "<b>"}')
    form = html(page.get(f"{LIST}/s")).edit
    assert form["timetable"] == "0 */6 * * *"
    assert form["kwargs"] == '{"a": "<b>"}'
    assert "Nothing was changed" in after(page, page.post(f"{LIST}/s", data=form))
    text = html(page.post(f"{LIST}/s", data=form | {"timetable": "61 * * * *"}), 422)
    assert "minute" in text.wrong["timetable"]
    assert 'value="61 * * * *"' in text
    assert sql("SELECT cron FROM pgbeat.schedules") == [("0 */6 * * *",)]
    changed = form | {"timetable": "*/5 * * * *", "jitter": "", "owner": "data", "grace": "1 h"}
    assert "updated" in after(page, page.post(f"{LIST}/s", data=changed))
    found = sql(
        "SELECT cron, jitter, owner, grace::text, condition_sql, kwargs FROM pgbeat.schedules"
    )[0]
    assert found[0] == "*/5 * * * *"
    assert not found[1]
    assert found[2:] == ("data", "01:00:00", "SELECT true", {"a": "<b>"})
    every = html(page.get(f"{LIST}/s")).edit | {"kind": "every", "timetable": "90 s"}
    after(page, page.post(f"{LIST}/s", data=every))
    assert sql("SELECT cron, every::text FROM pgbeat.schedules") == [(None, "00:01:30")]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("timezone", "Mars/Olympus", "Mars/Olympus"),
        ("kwargs", "{", "invalid JSON"),
        ("kwargs", "[1]", "dictionary"),
        ("jitter", "soon", "no length of time"),
        ("max_runs", "many", "integer"),
        ("max_retries", "", "must have a value"),
        ("task", "tests.ad", "tests.add"),
        ("timetable", "", "the timetable is missing"),
    ],
)
def test_what_is_wrong_is_said_beside_its_field(
    page: Any, schedule: Any, sql: Sql, field: str, value: str, said: str
) -> None:
    schedule("s")
    before = sql("SELECT * FROM pgbeat.schedules")
    form = html(page.get(f"{LIST}/s")).edit
    text = html(page.post(f"{LIST}/s", data=form | {field: value}), 422)
    assert said in text.wrong[field]
    assert f'id="f-{field}"' in text
    assert 'aria-invalid="true"' in text
    assert sql("SELECT * FROM pgbeat.schedules") == before


def test_what_others_changed_meanwhile_stays(page: Any, schedule: Any, sql: Sql) -> None:
    schedule("s")
    form = html(page.get(f"{LIST}/s")).edit
    sql("UPDATE pgbeat.schedules SET cron = '5 5 * * *' RETURNING id")
    after(page, page.post(f"{LIST}/s", data=form | {"owner": "me"}))
    assert sql("SELECT cron, owner FROM pgbeat.schedules") == [("5 5 * * *", "me")]


# -- jobs ----------------------------------------------------------------------------------------


def test_jobs_are_listed_by_what_one_asks_for(web: Web, page: Any, job: Any, schedule: Any) -> None:
    schedule_id = schedule("s")
    mine = job(created_by="user:alice", task="mine.task")
    job(state="failed", error="ValueError: broken", task="bad.task", schedule="s",
        schedule_id=schedule_id)  # fmt: skip
    every = html(page.get("/console/jobs"))
    assert "mine.task" in every
    assert "ValueError: broken" in every
    assert "mine.task" not in html(page.get("/console/jobs?state=failed"))
    assert "bad.task" in html(page.get("/console/jobs?schedule=s"))
    assert "mine.task" not in html(page.get("/console/jobs?schedule=s"))
    assert "there is no schedule" in html(page.get("/console/jobs?schedule=t"))
    alice = web.browser(web.token("alice"))
    schedule("payroll")
    assert "did you mean 'payroll'?" in html(page.get("/console/jobs?schedule=payrol")).words
    known = html(alice.get("/console/jobs?schedule=payroll")).words
    assert html(alice.get("/console/jobs?schedule=payrol")).words == known
    own = html(alice.get("/console/jobs"))
    assert "mine.task" in own
    assert "bad.task" not in own
    assert mine[:8] in own
    assert web.browser(web.token("bob")).get(f"/console/jobs/{mine}").status_code == 404


def test_jobs_are_paged(page: Any, job: Any) -> None:
    for number in range(60):
        job(task=f"t{number:02}", created_at=f"2026-01-01T00:00:{number:02}Z")
    text = html(page.get("/console/jobs"))
    second = html(page.get(text.next))
    found = re.findall(r"\bt\d\d\b", text.words + second.words)
    assert found == [f"t{number:02}" for number in reversed(range(60))]
    assert "not the `next` of a page" in html(page.get("/console/jobs?after=x"), 422)


def test_a_job_shows_executions_chain_and_checkpoint(page: Any, job: Any, sql: Sql) -> None:
    first = job(state="failed", error="ValueError: one")
    second = job(state="running", finished_at=None, retry_of=first, attempt=2, max_attempts=3,
                 checkpoint='{"row": 17}', worker="w@host")  # fmt: skip
    sql("UPDATE pgbeat.jobs SET retried_by = %s WHERE id = %s RETURNING id", second, first)
    sql(
        "INSERT INTO pgbeat.executions (job_id, number, worker, state, finished_at, error,"
        " traceback) VALUES (%s, 1, 'w@host', 'failed', now(), 'ValueError: one',"
        " 'Traceback (most recent call last)') RETURNING id", first,
    )  # fmt: skip
    sql(
        "INSERT INTO pgbeat.executions (job_id, number, worker, progress_done, progress_total,"
        " progress_message) VALUES (%s, 1, 'w@host', 17, 50, 'rows') RETURNING id", second,
    )  # fmt: skip
    text = html(page.get(f"/console/jobs/{second}"))
    assert '<progress max="50.0" value="17.0"' in text
    said = text.words
    assert "17 of 50, rows" in said
    assert '"row": 17' in said
    assert f"before: {first[:8]} failed" in said
    said = html(page.get(f"/console/jobs/{first}")).words
    assert "Traceback (most recent call last)" in said
    assert f"after: {second[:8]} running" in said
    assert html(page.get("/console/jobs/nothing"), 404)


def test_buttons_are_what_a_job_and_the_caller_allow(web: Web, page: Any, job: Any) -> None:
    def verbs(browser: Any, job_id: str) -> set[str]:
        shown = html(browser.get(f"/console/jobs/{job_id}"))
        return {each.get("value") for each in shown.all("[name=do]")}

    user = web.browser(web.token("alice"))
    alice: dict[str, Any] = {"created_by": "user:alice"}
    cases: list[tuple[dict[str, Any], set[str], set[str]]] = [
        ({}, {"delete"}, {"delete"}),
        ({"state": "failed"}, {"retry", "delete"}, {"retry", "delete"}),
        ({"state": "pending", "finished_at": None}, {"pause", "cancel", "update"},
         {"pause", "cancel", "update"}),
        ({"state": "paused", "finished_at": None}, {"resume", "cancel", "update"},
         {"resume", "cancel", "update"}),
        ({"state": "paused", "finished_at": None, "awaits_approval": True},
         {"approve", "cancel", "update"}, {"cancel", "update"}),
        ({"state": "running", "finished_at": None}, {"cancel"}, {"cancel"}),
        ({"state": "failed", "is_system_job": True}, {"retry", "delete"}, set()),
    ]  # fmt: skip
    for values, of_admin, of_user in cases:
        job_id = job(**alice, **values)
        assert verbs(page, job_id) == of_admin, values
        assert verbs(user, job_id) == of_user, values


def test_a_job_is_steered(web: Web, page: Any, schedule: Any, sql: Sql) -> None:
    schedule("s")
    page.post(f"{LIST}/s", data={"do": "trigger"})
    [(job_id,)] = sql("SELECT id FROM pgbeat.jobs")
    path = f"/console/jobs/{job_id}"

    def do(verb: str, **more: str) -> str:
        return after(page, page.post(path, data={"do": verb, **more})).words

    assert "The job is paused." in do("pause")
    assert "The job goes on." in do("resume")
    assert "The job was cancelled." in do("cancel", reason="too late")
    assert sql("SELECT state, error FROM pgbeat.jobs")[0][0] == "cancelled"
    assert "too late" in html(page.get(path))
    text = html(page.post(path, data={"do": "cancel"}), 409)
    assert "cancelled" in text.alert
    assert "This is the new job" in do("retry")
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(2,)]
    assert "was deleted" in do("delete")
    found = sql("SELECT verb FROM pgbeat.audit WHERE kind = 'job' ORDER BY id")
    assert found == [("pause",), ("resume",), ("cancel",), ("retry",), ("delete",)]
    assert html(page.post(path, data={"do": "cancel"}), 404)


def test_a_user_does_not_steer_others_jobs(web: Web, job: Any, sql: Sql) -> None:
    job_id = job(state="pending", finished_at=None, started_at=None, created_by="user:alice")
    other = web.browser(web.token("bob"))
    for verb in ("cancel", "pause", "delete", "approve"):
        assert other.post(f"/console/jobs/{job_id}", data={"do": verb}).status_code == 404
    assert sql("SELECT state FROM pgbeat.jobs") == [("pending",)]
    assert sql("SELECT count(*) FROM pgbeat.audit") == [(0,)]


def test_flower_is_linked_where_it_is(app: Celery, database: str, job: Any) -> None:
    with opened(app, web_flower_url="https://flower.test/f/") as web:
        page = web.browser(web.token("root", "admin"))
        job_id = job()
        assert f'href="https://flower.test/f/task/{job_id}"' in html(
            page.get(f"/console/jobs/{job_id}")
        )


# -- lanes, queues, beats ------------------------------------------------------------------------


def test_a_lane_shows_who_is_in_it_and_who_waits(page: Any, job: Any, sql: Sql) -> None:
    sql("INSERT INTO pgbeat.lanes (name, max_running) VALUES ('gpu', 1) RETURNING name")
    job(lane="gpu", state="running", finished_at=None, dispatched_at="2026-01-01T00:00:00Z",
        task="in.slot")  # fmt: skip
    job(lane="gpu", state="pending", finished_at=None, started_at=None, task="in.line")
    said = html(page.get("/console/lanes")).words
    assert "gpu active 1 of 1 1 " in said
    said = html(page.get("/console/lanes/gpu")).words
    assert re.search(r"In its slots \w{8} running in.slot", said)
    assert re.search(r"Waiting line .*\bin\.line\b", said)
    assert "is paused" in after(page, page.post("/console/lanes/gpu", data={"do": "pause"}))
    assert "the lane is paused" in html(page.get("/console/lanes/gpu"))
    assert "goes on" in after(page, page.post("/console/lanes/gpu", data={"do": "resume"}))
    assert sql("SELECT verb FROM pgbeat.audit WHERE kind = 'lane' ORDER BY id") == [
        ("pause",), ("resume",)
    ]  # fmt: skip
    assert html(page.get("/console/lanes/cpu"), 404)
    assert html(page.post("/console/lanes/cpu", data={"do": "pause"}), 404)


@pytest.fixture
def dead(page: Any, schedule: Any, sql: Sql) -> Iterator[int]:
    """A dead letter of queue `celery`; its number."""
    schedule("s")
    page.post(f"{LIST}/s", data={"do": "trigger"})
    [(name,)] = sql("SELECT name FROM kombu_queue")
    assert name == "celery"
    [(number,)] = sql(
        "WITH gone AS (DELETE FROM kombu_message RETURNING *) "
        "INSERT INTO kombu_message_dead "
        "(id, queue, payload, priority, reason, deliveries, enqueued_at) "
        "SELECT id, 'celery', payload, priority, 'delivered 3 times', 3, enqueued_at FROM gone "
        "RETURNING id"
    )
    yield number


def test_a_dead_letter_is_put_back(page: Any, dead: int, sql: Sql) -> None:
    said = html(page.get("/console/queues")).words
    assert "celery 0 0 0 1 ? –" in said
    assert "delivered 3 times" in said
    assert "tests.add" in said
    form = {"do": "requeue", "id": str(dead)}
    assert "back in queue" in after(page, page.post("/console/dead", data=form))
    assert "celery 1 0 0 0 ? " in html(page.get("/console/queues")).words
    assert f"there is no dead letter {dead}" in html(page.post("/console/dead", data=form), 404)
    assert html(page.post("/console/dead", data=form | {"id": "x"}), 404)
    assert sql("SELECT verb, kind FROM pgbeat.audit ORDER BY id DESC LIMIT 1") == [
        ("requeue", "dead letter")
    ]


def test_a_dead_letter_is_dropped_and_a_queue_steered(page: Any, dead: int, sql: Sql) -> None:
    after(page, page.post("/console/dead", data={"do": "drop", "id": str(dead)}))
    assert sql("SELECT count(*) FROM kombu_message_dead") == [(0,)]
    page.post(f"{LIST}/s", data={"do": "trigger"})
    for verb, said in (("pause", "is paused"), ("resume", "goes on"), ("purge", "1 message")):
        text = after(page, page.post("/console/queues", data={"do": verb, "queue": "celery"}))
        assert said in text
    assert sql("SELECT count(*) FROM kombu_message") == [(0,)]
    assert html(page.post("/console/queues", data={"do": "purge", "queue": "no"}), 404)


def test_beats(page: Any, beat: Beat) -> None:
    assert "No beat runs" in html(page.get("/console/beats"))
    assert "No beat leads" in html(page.get(LIST))


# -- what others write ---------------------------------------------------------------------------


def test_what_others_write_is_text(web: Web, page: Any, schedule: Any, job: Any, sql: Sql) -> None:
    schedule_id = schedule(
        EVIL.replace("/", "|"), task=EVIL, owner=EVIL, queue=EVIL, condition_sql=EVIL,
        enabled=False, disabled_reason=EVIL, last_error=EVIL, last_failure="2026-01-01",
    )  # fmt: skip
    sql(
        "INSERT INTO pgbeat.ticks (schedule_id, schedule, due_at, outcome, reason, note) "
        "VALUES (%s, %s, now(), 'skipped', %s, %s) RETURNING id",
        schedule_id, EVIL.replace("/", "|"), EVIL, EVIL,
    )  # fmt: skip
    job_id = job(state="failed", task=EVIL, error=EVIL, schedule=EVIL, created_by=EVIL, queue=EVIL,
                 tags=[EVIL], unique_key=EVIL, worker=EVIL, checkpoint='"<script>"', lane=EVIL,
                 template=EVIL, created_at="now()")  # fmt: skip
    sql(
        "INSERT INTO pgbeat.executions (job_id, number, worker, state, finished_at, error, "
        "traceback, result, progress_message) VALUES (%s, 1, %s, 'failed', now(), %s, %s, %s, %s) "
        "RETURNING id", job_id, EVIL, EVIL, EVIL, EVIL, EVIL,
    )  # fmt: skip
    sql(
        "INSERT INTO pgbeat.audit (namespace, actor, origin, verb, kind, subject, after) "
        "VALUES ('default', %s, 'cli', %s, %s, %s, '\"<script>\"') RETURNING id",
        EVIL, EVIL, EVIL, EVIL,
    )  # fmt: skip
    from urllib.parse import quote

    name = quote(EVIL.replace("/", "|"))
    pages = [LIST, f"{LIST}/{name}", "/console/jobs", f"/console/jobs/{job_id}", "/console/audit",
             f"{LIST}?search={quote(EVIL)}", f"/console/jobs?task={quote(EVIL)}"]  # fmt: skip
    for path in pages:
        text = html(page.get(path))
        assert "&lt;script&gt;alert(" in text, path
        assert len(text.all("script")) == 1, path
    wrong = html(page.get(f"{LIST}/{quote('<script>')}"), 404)
    assert len(wrong.all("script")) == 1
    page.cookies.set("pgbeat_said", "bm90IGpzb24=")
    assert "Schedules" in html(page.get(LIST))
    form = html(web.nobody.get("/login", params={"next": '"><script>alert(1)</script>'}))
    assert len(form.all("script")) == 1


@pytest.mark.parametrize(
    ("cron", "said"),
    [
        ("* * * * *", "every minute"),
        ("*/15 * * * *", "every 15 minutes"),
        ("*/7 * * * *", None),
        ("0 * * * *", "every hour, on the hour"),
        ("5 * * * *", "every hour at minute 05"),
        ("0 */6 * * *", "every 6 hours"),
        ("30 */6 * * *", "every 6 hours, at minute 30"),
        ("0 */5 * * *", None),
        ("0 2 * * *", "every day at 02:00"),
        ("0 9,17 * * 1-5", "Monday to Friday at 09:00 and 17:00"),
        ("30 8 * * mon,thu", "Mondays and Thursdays at 08:30"),
        ("0 0 1 * *", "on day 1 of each month at 00:00"),
        ("0 0 l * *", "on the last day of each month at 00:00"),
        ("0 0 25 12 *", "on day 25 of December at 00:00"),
        ("*/10 9-17 * * 1-5", "every 10 minutes, from 09:00 to 17:59, Monday to Friday"),
        ("0 9-17 * * *", "every hour at minute 00, from 09:00 to 17:59"),
        ("@daily", "every day at 00:00"),
        ("0 0 1 * 1", None),
        ("0 0 * * 5#2", None),
        ("0 0 */2 * *", None),
        ("1-10/3 * * * *", None),
        ("0 0 * jan *", None),
        ("0 2 * * * 30", None),
    ],
)
def test_cron_in_words(cron: str, said: str | None) -> None:
    assert words.cron(cron) == said
