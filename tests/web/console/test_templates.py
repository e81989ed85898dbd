"""The console's pages of templates."""

from typing import Any

from tests.support.command_line import Sql
from tests.support.pages import Page, after, html
from tests.support.web import Web, done
from tests.web.console.test_forms import noted


def test_a_template_is_made_changed_and_deleted(page: Any, sql: Sql) -> None:
    assert "No templates yet" in html(page.get("/console/templates"))
    sql("INSERT INTO pgbeat.lanes (name) VALUES ('gpu')")
    form = html(page.get("/console/new/template")).fields
    form |= {
        "name": "t",
        "task": "tests.add",
        "args": "[1]",
        "description": "Adds",
        "job_policy.lane": "gpu",
        "job_policy.max_attempts": "5",
        "job_policy.unique": "yes",
    }
    assert "was created" in after(page, page.post("/console/new/template", data=form))
    text = html(page.get("/console/templates/t"))
    assert "Runs tests.add Arguments [1] Lane gpu Attempts 5" in text.words
    assert "t Adds tests.add [1] gpu" in html(page.get("/console/templates")).words
    edit = text.edit
    assert "Nothing was changed" in after(page, page.post("/console/templates/t", data=edit))
    # What another changed meanwhile stays.
    sql("UPDATE pgbeat.templates SET description = 'Adds well'")
    edit |= {"args": "[2]", "job_policy.unique": "", "job_policy.retry_cap": "2 h"}
    assert "was changed" in after(page, page.post("/console/templates/t", data=edit))
    assert sql("SELECT args, description, job_policy FROM pgbeat.templates") == [
        ([2], "Adds well", {"lane": "gpu", "max_attempts": 5, "retry_cap": "2 h"})
    ]
    sql(
        "INSERT INTO pgbeat.schedules (name, task, cron, job_policy)"
        " VALUES ('s', 'tests.add', '@daily', '{\"template\": \"t\"}')"
    )
    text = html(page.get("/console/templates/t"))
    assert 'href="/console/schedules/s"' in text
    refused = html(page.post("/console/templates/t", data={"do": "delete"}), 422).words
    assert "is used by 's'" in refused
    sql("DELETE FROM pgbeat.schedules")
    assert "deleted" in after(page, page.post("/console/templates/t", data={"do": "delete"}))
    assert sql("SELECT count(*) FROM pgbeat.templates") == [(0,)]
    assert noted(sql) == [
        ("user:root", "page", verb, "template", "t") for verb in ("create", "update", "delete")
    ]
    assert html(page.get("/console/templates/t"), 404)
    assert html(page.post("/console/templates/t", data=edit), 404)


WRONG_TEMPLATES: list[tuple[str, str, str]] = [
    ("name", "", "the name is missing"),
    ("name", "a/b", "no slash"),
    ("name", "taken", "already"),
    ("task", "", "the task is missing"),
    ("task", "tests.ad", "tests.add"),
    ("kwargs", "{", "invalid JSON"),
    ("args", "{}", "array"),
    ("options", '{"countdown": 1}', "countdown"),
    ("job_policy.lane", "nowhere", "no lane"),
    ("job_policy.retry_cap", "soon", "length of time"),
    ("job_policy.priority", "-1", "0 to 255"),
]


def test_a_template_that_is_wrong_is_not_made(web: Web, page: Any, sql: Sql) -> None:
    done(web.admin.put("/templates/taken", json={"task": "tests.add"}), 201)
    for field, value, said in WRONG_TEMPLATES:
        form = {"name": "t", "task": "tests.add", field: value}
        answer = page.post("/console/new/template", data=form)
        assert answer.status_code == (409 if value == "taken" else 422)
        assert said in Page(answer.text).wrong[field.replace(".", "-")]
        if field != "name":
            edit = html(page.get("/console/templates/taken")).edit | {field: value}
            text = html(page.post("/console/templates/taken", data=edit), 422)
            assert said in text.wrong[field.replace(".", "-")]
            assert '<details class="edit" id="edit" open>' in text
        assert sql("SELECT name, task, job_policy FROM pgbeat.templates") == [
            ("taken", "tests.add", {})
        ]
        assert len(noted(sql)) == 1


def test_a_user_sees_templates_and_changes_none(web: Web, user: Any, sql: Sql) -> None:
    done(web.admin.put("/templates/t", json={"task": "tests.add"}), 201)
    text = html(user.get("/console/templates/t"))
    assert 'id="edit"' not in text
    assert 'value="delete"' not in text
    assert "New template" not in html(user.get("/console/templates"))
    assert user.post("/console/templates/t", data={"do": "delete"}).status_code == 403
    assert user.get("/console/new/template").status_code == 403
    form = {"name": "u", "task": "tests.add"}
    assert user.post("/console/new/template", data=form).status_code == 403
    assert sql("SELECT name FROM pgbeat.templates") == [("t",)]
