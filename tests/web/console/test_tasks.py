"""The console's list of tasks, and what it says of untracked ones."""

from typing import Any

import pytest

from tests.support.command_line import Sql
from tests.support.pages import html
from tests.support.web import Web, done

NOW = "date_trunc('hour', now(), 'UTC')"


def test_untracked_tasks_are_shown(
    web: Web, page: Any, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "No task ran" in html(page.get("/console/tasks")).words
    assert "untracked" not in html(page.get("/console/overview")).words
    sql(f"INSERT INTO pgbeat.untracked_tasks VALUES ('default', {NOW}, 'mail', 1204)")
    shown = html(page.get("/console/tasks"))
    assert "1,204 tasks ran untracked" in shown.words
    assert shown.one("#list tbody a").get("href") == "/console/tasks/mail"
    assert "1,204 tasks ran untracked" in html(page.get("/console/overview?span=1w")).words
    monkeypatch.setattr(web.app.state.pgbeat.celery, "namespace", "CELERY")
    for path in ("/console/tasks", "/console/overview?span=1d"):
        assert 'CELERY_PGBEAT_TRACK = "all"' in html(page.get(path)).words
    found = done(web.admin.get("/tasks"))
    assert (found["untracked"], found["tasks"][0]["name"]) == (1204, "mail")
