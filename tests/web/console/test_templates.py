"""The console's pages of templates."""

from typing import Any

from tests.support.command_line import Sql
from tests.support.pages import after, html
from tests.support.rows import make_schedule, make_template


def test_a_template_is_shown_and_changed(page: Any, sql: Sql) -> None:
    make_template(sql, args="[1]", job_policy={"max_attempts": 5, "unique": True})
    make_schedule(sql, job_policy={"template": "t"})
    text = html(page.get("/console/templates/t"))
    assert "Runs tests.add Arguments [1] Attempts 5" in text.words
    assert 'href="/console/schedules/s"' in text
    edit = text.edit
    assert "Nothing was changed" in after(page, page.post("/console/templates/t", data=edit))
    # What another changed meanwhile stays.
    sql("UPDATE pgbeat.templates SET description = 'Adds well'")
    edit |= {"args": "[2]", "job_policy.unique": "", "job_policy.retry_cap": "2 h"}
    assert "was changed" in after(page, page.post("/console/templates/t", data=edit))
    assert sql("SELECT args, description, job_policy FROM pgbeat.templates") == [
        ([2], "Adds well", {"max_attempts": 5, "retry_cap": "2 h"})
    ]
