"""The console's pages: who may see them, and how they show what others write."""

from typing import Any
from urllib.parse import quote

import pytest

from pgbeat.schedules import timetable_words
from tests.support.command_line import Sql
from tests.support.pages import EVIL, html
from tests.support.web import Web
from tests.web.console.shown_pages import shown_pages

LIST = "/console/schedules"
#: Pages that show no text of others'.
UNWRITTEN = ("beats", "calendars", "find", "new/", "queues", "workers", "tasks")


# -- coming in -----------------------------------------------------------------------------------


def test_who_is_not_known_signs_in_and_gets_where_they_wanted(web: Web) -> None:
    nobody = web.client(headers={"Sec-Fetch-Site": "same-origin"})
    answer = nobody.get(f"{LIST}?state=paused")
    assert answer.status_code == 303
    form = html(nobody.get(answer.headers["location"]))
    assert 'name="next" value="/console/schedules?state=paused"' in form
    answer = nobody.post("/login", data={"token": "pgb_none", "next": LIST})
    assert html(nobody.get(answer.headers["location"])).all("#failed[role=alert]")
    token = web.token("root", "admin")
    answer = nobody.post("/login", data={"token": token, "next": f"{LIST}?state=paused"})
    assert answer.headers["location"] == f"{LIST}?state=paused"
    assert "<h1>Schedules</h1>" in html(nobody.get(answer.headers["location"]))


def test_the_start_leads_to_what_one_may_see(web: Web, page: Any) -> None:
    assert page.get("/").headers["location"] == "/console/overview"
    user = web.browser(web.token("alice"))
    assert user.get("/").headers["location"] == "/console/jobs"
    text = html(user.get("/console/jobs"))
    assert 'href="/console/schedules"' not in text
    said = html(user.get(LIST), 403).words
    assert "that is for administrators" in said


def test_the_page_of_what_is_not_there_leads_on(web: Web, page: Any, user: Any) -> None:
    for path in ("/console/nowhere", "/console/jobs/a%2Fb", "/console/jobs/1", f"{LIST}/none"):
        text = html(page.get(path), 404)
        assert "<h1>Not Found</h1>" in text
        assert 'href="/console/schedules"' in text
        assert "Sign out" in text
        said = html(user.get(path), 403 if path.startswith(LIST) else 404)
        assert 'href="/console/jobs"' in said
        assert 'href="/console/schedules"' not in said
        answer = web.nobody.get(path)
        assert answer.headers["location"].startswith("/login?next=")


def test_a_slash_too_many_is_left_out(page: Any) -> None:
    answer = page.get("/console/jobs/?state=failed")
    assert answer.headers["location"] == "/console/jobs?state=failed"


def test_pages_without_anything_say_what_to_do(page: Any) -> None:
    of_all = ("schedules", "jobs", "groups", "templates", "lanes", "queues", "calendars")
    for path in (*of_all, "beats", "webhooks", "audit"):
        text = html(page.get(f"/console/{path}"))
        assert 'class="empty"' in text
        assert text.has_no_script_inside()


def test_the_files_are_there(page: Any) -> None:
    for name in ("console.css", "console.js", "icon.svg"):
        answer = page.get(f"/static/{name}")
        assert answer.status_code == 200
        assert answer.headers.get("cache-control") != "no-store"


# -- what others write ---------------------------------------------------------------------------


def test_what_others_write_is_text(web: Web, page: Any, sql: Sql) -> None:
    name = EVIL.replace("/", "|")
    searches = [f"schedules?search={quote(EVIL)}", f"jobs?task={quote(EVIL)}"]
    searches += ["new/job?template=t", f"new/schedule?task={quote(EVIL)}"]
    for path in shown_pages(sql, EVIL, name) + searches:
        text = html(page.get(f"/console/{path}"))
        assert len(text.all("script")) == 1, path
        assert text.has_no_script_inside(), path
        if not path.startswith(UNWRITTEN):
            assert "&lt;script&gt;" in text, path
    for form in ({"name": EVIL, "rate": EVIL}, {"name": name, "rate": EVIL}):
        assert len(html(page.post("/console/new/lane", data=form), 422).all("script")) == 1
    wrong = html(page.get(f"{LIST}/{quote('<script>')}"), 404)
    assert len(wrong.all("script")) == 1
    page.cookies.set("pgbeat_said", "bm90IGpzb24=")
    assert "Schedules" in html(page.get(LIST))
    form_of = html(web.nobody.get("/login", params={"next": '"><script>alert(1)</script>'}))
    assert len(form_of.all("script")) == 1


@pytest.mark.parametrize(
    ("cron", "said"),
    [
        ("*/15 * * * *", "every 15 minutes"),
        ("*/7 * * * *", None),
        ("0 * * * *", "every hour, on the hour"),
        ("5 * * * *", "every hour at minute 05"),
        ("30 */6 * * *", "every 6 hours, at minute 30"),
        ("0 */5 * * *", None),
        ("0 9,17 * * 1-5", "Monday to Friday at 09:00 and 17:00"),
        ("30 8 * * mon,thu", "Mondays and Thursdays at 08:30"),
        ("0 0 1 * *", "on day 1 of each month at 00:00"),
        ("0 0 l * *", "on the last day of each month at 00:00"),
        ("*/10 9-17 * * 1-5", "every 10 minutes, from 09:00 to 17:59, Monday to Friday"),
        ("0 9-17 * * *", "every hour at minute 00, from 09:00 to 17:59"),
        ("@daily", "every day at 00:00"),
        ("0 0 1 * 1", None),
        ("0 0 */2 * *", None),
        ("1-10/3 * * * *", None),
        ("0 2 * * * 30", None),
        ("0 9,17 * * 1-5\n0 12 * * sat", "Monday to Friday at 09:00 and 17:00; Saturdays at 12:00"),
        ("0 2 * * *\n0 0 1 * 1", None),
        ("0 1 * * *\n0 2 * * *\n0 3 * * *\n0 4 * * *", None),
    ],
)
def test_cron_in_words(cron: str, said: str | None) -> None:
    assert timetable_words.cron(cron) == said
