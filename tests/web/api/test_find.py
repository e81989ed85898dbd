"""`GET /find`, and the page that the console's palette reads."""

from typing import Any

from tests.support.command_line import Sql
from tests.support.pages import html
from tests.support.rows import make_job, make_lane
from tests.support.web import Web, done


def test_things_are_found_by_a_part_of_their_name(web: Web, admin: Any, sql: Sql) -> None:
    make_lane(sql, "Zebras")
    job = make_job(sql, "completed", task="shop.zebras")
    sql("INSERT INTO pgbeat.templates (name, task) VALUES ('50%_zebras', 'x')")
    sql(
        "INSERT INTO pgbeat.rollups (namespace, step, kind, name, at) VALUES "
        "('default', 60, 'task', 'shop.zebras', now()), ('default', 60, 'task', 'mail', now()), "
        "('default', 3600, 'task', 'old.zebras', now()), ('other', 60, 'task', 'zebras', now()), "
        "('default', 60, 'queue', 'zebras_q', now())"
    )

    def find(text: str, client: Any = admin) -> set[tuple[str, str]]:
        return {
            (each["kind"], each["name"])
            for each in done(client.get("/find", params={"text": text}))
        }

    assert find("zebras") == {
        ("lane", "Zebras"),
        ("task", "shop.zebras"),
        ("task", "old.zebras"),
        ("template", "50%_zebras"),
        ("queue", "zebras_q"),
    }
    assert find("50%_") == {("template", "50%_zebras")}
    assert find("%") == {("template", "50%_zebras")}
    assert find(job[:6]) == {("job", job)}
    assert find(" ") == find("nothing of that name") == set()
    assert find("zebras", web.client(web.token("alice"))) == set()
    assert find(job[:6], web.client(web.token("alice"))) == {("job", job)}
    assert find(job[:6], web.client(web.token("bob"))) == set()


def test_the_palette_has_pages_and_actions(web: Web, sql: Sql) -> None:
    make_lane(sql, "gpu")

    def lines(who: str, scope: Any, text: str) -> list[str]:
        page = html(web.browser(web.token(who, scope)).get("/console/find", params={"text": text}))
        return [each.get("href") for each in page.all("#choices a")]

    assert lines("root", "admin", "lane") == [
        "/console/lanes",
        "/console/new/lane",
        "/console/jobs?q=lane",
    ]
    assert lines("root", "admin", "gp")[0] == "/console/lanes/gpu"
    assert lines("eve", "viewer", "lane") == ["/console/lanes", "/console/jobs?q=lane"]
    assert lines("alice", "user", "lane") == ["/console/jobs?q=lane"]
    assert "/console/new/schedule" in lines("root", "admin", "")
