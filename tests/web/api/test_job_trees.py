"""The tree of a job, by the API and on its page."""

from typing import Any
from uuid import uuid4

from psycopg.types.json import Jsonb

from tests.support.pages import html
from tests.support.rows import Sql, make_job
from tests.support.web import Web


def chained(sql: Sql, **values: Any) -> tuple[str, str]:
    """Writes a job with a step to come, and one that it sent; their ids."""
    following = {"next": {"id": str(uuid4()), "task": "jobs.later"}}
    root = make_job(sql, "running", canvas=Jsonb(following), **values)
    return root, make_job(sql, "failed", root_id=root, parent_id=root, error="<b>no", **values)


def test_how_many_siblings(web: Web, sql: Sql) -> None:
    """One to a thousand."""
    root = make_job(sql)
    for _ in range(3):
        make_job(sql, root_id=root, parent_id=root)
    children = web.user.get(f"/jobs/{root}/tree?siblings=1").json()["root"]["children"]
    assert [each["kind"] for each in children] == ["job", "more"]
    assert children[1]["counts"] == {"pending": 2}
    assert web.user.get(f"/jobs/{root}/tree?siblings=0").status_code == 422


def test_the_page(web: Web, sql: Sql) -> None:
    """It works without scripts, and is linked from the job's."""
    root, child = chained(sql)
    page = web.browser(web.token("alice"))
    assert f"/console/jobs/{child}/tree" in html(page.get(f"/console/jobs/{child}"))
    shown = html(page.get(f"/console/jobs/{child}/tree"))
    assert f"/console/jobs/{root}" in shown
    assert "then jobs.later" in shown.words and "comes after the one before" in shown.words
    assert "&lt;b&gt;no" in shown
    assert web.browser(web.token("bob")).get(f"/console/jobs/{child}/tree").status_code == 404
