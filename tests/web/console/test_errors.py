"""The page of errors, and the errors on the pages of a task and of everything."""

from typing import Any

from tests.support.command_line import Sql
from tests.support.pages import html, words_of
from tests.support.rows import make_job, make_schedule, make_tick


def test_errors_that_are_alike_are_one(page: Any, sql: Sql) -> None:
    make_schedule(sql, "nightly")
    for number in range(3):
        job = make_job(sql, "failed", task="a", schedule="nightly", error=f"Boom: order {number}")
    make_job(sql, "failed", task="b/c", error="KeyError: 'name'")
    shown = html(page.get("/console/errors"))
    boom, key = shown.all(".errors li")
    assert words_of(boom.cssselect("h3")[0]) == "Boom: order *"
    assert words_of(boom.cssselect(".big")[0]) == "3"
    [bars] = boom.cssselect("svg path")
    assert bars.get("d").count("M") == 1
    hrefs = [each.get("href") for each in boom.cssselect("a")]
    assert {f"/console/jobs/{job}", "/console/tasks/a", "/console/schedules/nightly"} < {*hrefs}
    [jobs] = [href for href in hrefs if href.startswith("/console/jobs?")]
    assert len(html(page.get(jobs)).all("#list tbody tr")) == 3
    assert words_of(key.cssselect("h3")[0]) == "KeyError: 'name'"
    one = html(page.get("/console/errors?task=b/c&span=7d"))
    assert len(one.all(".errors li")) == 1
    assert one.one(".spans [aria-current]").get("href") == "/console/errors?task=b%2Fc&span=7d"
    assert html(page.get("/console/errors?task=c")).all(".errors") == []


def test_all_jobs_of_an_error_are_retried_at_once(page: Any, sql: Sql) -> None:
    for error in ("Boom: order 1\nand more", "Boom: order 22", "Bust: order 3"):
        make_job(sql, "failed", task="tests.add", error=error)
    shown = html(page.get("/console/errors"))
    [boom] = [each for each in shown.all(".errors li") if "Boom" in words_of(each)]
    form = {each.get("name"): each.get("value") for each in boom.cssselect("form input")}
    asked = html(page.post("/console/bulk", data=form | {"do": "retry"}))
    assert "Retry 2 jobs?" in asked.words


def test_a_task_shows_its_errors(page: Any, sql: Sql) -> None:
    for number in range(7):
        make_job(sql, "failed", task="a", error=f"{'ABCDEFG'[number]}: no")
    shown = html(page.get("/console/tasks/a"))
    assert len(shown.all("#errors-box .errors li")) == 5
    more = [each.get("href") for each in shown.all("#errors-box .hint a")]
    assert more == ["/console/errors?task=a&span=6h"]
    assert len(html(page.get(more[0])).all(".errors li")) == 7


def test_reasons_that_are_alike_are_one(page: Any, sql: Sql) -> None:
    """Of ticks that were skipped, as of those that failed."""
    schedule = make_schedule(sql, "s")
    other = make_schedule(sql, "other")
    said = [
        (schedule, "s", "skipped", "the job before it, 1a, is still running"),
        (other, "other", "skipped", "the job before it, 2b, is still running"),
        (schedule, "s", "skipped", "only 1 of a kind"),
        (schedule, "s", "failed", "Boom: 1"),
        (schedule, "s", "failed", "Boom: 2"),
    ]
    for number, (key, name, outcome, why) in enumerate(said):
        [(due,)] = sql("SELECT now() - make_interval(mins => %s)", 10 - number)
        given = {"reason" if outcome == "skipped" else "error": why}
        make_tick(sql, key, outcome, schedule=name, due_at=due, **given)
    for number in range(2):
        make_job(sql, "failed", task="a", error=f"Oops: {number}")
    shown = html(page.get("/console/overview"))
    skips = [words_of(each) for each in shown.all("[aria-labelledby=skips] li")]
    assert [each.split(", ago")[0].split(" s")[0] for each in skips][1] == "1 × only 1 of a kind"
    assert skips[0].startswith("2 × the job before it, *, is still running other and 1 more")
    failures = [words_of(each) for each in shown.all("[aria-labelledby=failures] li")]
    assert [each.split()[:4] for each in failures] == [
        ["2", "×", "Boom:", "*"],
        ["2", "×", "Oops:", "*"],
        ["All", "errors"],
    ]
