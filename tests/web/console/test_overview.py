"""The console's overview."""

from typing import Any

import pytest

from pgbeat.monitoring import runbook
from pgbeat.web.pages import summaries
from tests.support.command_line import Sql
from tests.support.pages import html, words_of
from tests.support.rows import ago, make_job, make_run, make_schedule, make_tick
from tests.support.web import Web

PATH = "/console/overview"


def test_what_runs_what_comes_next_what_is_wrong_and_why_not(page: Any, sql: Sql) -> None:
    bad = make_schedule(sql, "bad", task="jobs.add")
    busy = make_schedule(sql, "busy", task="jobs.add", cron=None, every="2 minutes")
    idle = make_schedule(sql, "idle", task="jobs.add", condition_sql="SELECT false")
    at = ago(sql, "10 minutes")
    failed = make_run(sql, bad, at, at, "failed", error="ValueError: no")
    running = make_run(sql, busy, at)
    make_tick(sql, idle, schedule="idle")
    shown = html(page.get(PATH))
    tiles = [words_of(tile) for tile in shown.all(".tile")]
    assert tiles[0].startswith("1 running")
    assert tiles[2].startswith("1 schedule failing or late")
    assert tiles[3] == "1 skipped no work"
    rows = {words_of(row.cssselect("th a")[0]): row for row in shown.all(".timeline tbody tr")}
    assert next(iter(rows)) == "bad"
    assert "failing, 1 in a row" in words_of(rows["bad"].cssselect("th")[0])
    links = {
        name: [each.get("href") for each in row.cssselect("svg a")] for name, row in rows.items()
    }
    assert links["bad"] == [f"jobs/{failed}"]
    assert links["busy"] == [f"jobs/{running}"]
    assert links["idle"] == ["schedules/idle#history"]
    assert [each.get("class") for each in rows["bad"].cssselect("svg rect")] == ["bad"]
    assert rows["busy"].cssselect("svg text.next")
    assert "busy" in words_of(shown.one("section:has(#running)"))
    assert "1 × no work idle" in words_of(shown.one("section:has(#skips)"))


def test_what_it_says_of_a_day_is_of_a_day(
    page: Any, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that failed today may be older, and the newest decisions all of the last minutes."""
    make_job(sql, "failed", created_at=ago(sql, "2 days"), error="ValueError: no")
    make_tick(sql, make_schedule(sql), decided_at=ago(sql, "1 hour"))
    theirs = make_schedule(sql, "theirs", namespace="other")
    for _ in range(2):
        make_tick(sql, theirs, "failed", decided_at=ago(sql, "5 minutes"))
    for newest, span, said in ((4, "1h", "1 skipped no work"), (2, "1d", "0 skipped since 5 min")):
        monkeypatch.setattr(summaries, "NEWEST", newest)
        shown = html(page.get(PATH, params={"span": span}))
        assert words_of(shown.all(".tile")[2]).endswith("1 job failed in a day")
        assert words_of(shown.all(".tile")[3]).startswith(said)
    assert "No skips since 5 min" in words_of(shown.one("section:has(#skips)"))


@pytest.mark.parametrize("path", ["overview", "schedules", "beats"])
def test_a_trouble_names_its_section_of_the_runbook(page: Any, path: str) -> None:
    trouble = html(page.get(f"/console/{path}")).one("p.said.bad")
    assert words_of(trouble).startswith("No beat leads: nothing is launched;")
    assert words_of(trouble.cssselect("code")[0]) == runbook.link(runbook.LATE)


def test_a_schedule_is_found_and_the_span_chosen(page: Any, sql: Sql) -> None:
    make_schedule(sql, "one", task="jobs.add")
    make_schedule(sql, "two", task="jobs.add")
    shown = html(page.get(PATH, params={"search": "tw", "span": "1w"}))
    assert [words_of(each) for each in shown.all(".timeline tbody th a")] == ["two"]
    assert shown.one(".spans a[aria-current]").text == "1w"
    assert "No schedule has" in html(page.get(PATH, params={"search": "three"})).words


def test_several_that_are_close_lead_to_their_jobs(page: Any, sql: Sql) -> None:
    key = make_schedule(sql, "s", task="jobs.add")
    at = ago(sql, "10 minutes")
    for _ in range(3):
        make_run(sql, key, at, at)
    (link,) = html(page.get(PATH)).all(".timeline svg a")
    assert "3 completed" in link.cssselect("title")[0].text
    assert len(html(page.get(f"/console/{link.get('href')}")).all("#list tbody tr")) == 3


def test_viewers_share_what_was_read_a_moment_ago(web: Web, page: Any, sql: Sql) -> None:
    make_schedule(sql, "s", task="jobs.add")
    first = html(page.get(PATH))
    with web.counted() as sent:
        again = html(page.get(PATH))
    assert len(sent) <= 3
    assert again.one("#overview").text_content() == first.one("#overview").text_content()


def test_an_empty_overview_says_how_to_begin(page: Any) -> None:
    shown = html(page.get(PATH))
    assert "No schedules yet" in shown.words
    assert shown.all("a[href='/console/new/schedule']")


def test_the_page_stays_small(page: Any, sql: Sql) -> None:
    """Twenty schedules whose many jobs failed, each with a long error."""
    for number in range(20):
        make_schedule(
            sql,
            f"a-schedule-with-a-rather-long-name-{number:02}",
            task="jobs.add",
            cron="* * * * *",
        )
    sql(
        """
        WITH made AS (
            INSERT INTO pgbeat.jobs (id, schedule_id, schedule, task, args, kwargs, state,
                                     job_source, created_by, is_system_job, created_at, started_at,
                                     finished_at, error)
            SELECT gen_random_uuid(), s.id, s.name, s.task, '[]', '{}', 'failed', 'scheduled_task',
                   'system', true, at, at, at + interval '1 s', repeat('an error ', 50)
              FROM pgbeat.schedules s, generate_series(0, 99) AS i,
                   LATERAL (SELECT now() - i * interval '27 s' AS at) AS t
            RETURNING *)
        INSERT INTO pgbeat.executions (job_id, schedule_id, number, state, worker, started_at,
                                       finished_at, error)
        SELECT id, schedule_id, 1, state, 'w', started_at, finished_at, error FROM made
        RETURNING id
        """
    )
    for span in ("1h", "1d"):
        shown = page.get(PATH, params={"span": span})
        assert len(html(shown).all(".timeline svg a")) > 100
        assert len(shown.content) < 150_000
