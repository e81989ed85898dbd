"""`/console/changes`: open pages are told that what they show has changed."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import jwt
import pytest
from celery import Celery

from pgbeat.web import issuer, stream_queries, watch
from pgbeat.web.api.jobs import events as api
from pgbeat.web.pages import changes
from tests.support.command_line import Sql
from tests.support.processes import Processes, until
from tests.support.rows import (
    insert,
    make_delivery,
    make_execution,
    make_job,
    make_lane,
    make_schedule,
    make_tick,
    make_webhook,
)
from tests.support.web import PATIENCE, Web, make_token, opened, served
from tests.web.api.test_events import asking, parsed
from tests.web.api.test_events import watch as watching
from tests.web.test_serving import served as served_by
from tests.web.test_serving import web_process

pytestmark = pytest.mark.anyio
KEY = "k" * 32


class Page:
    """An open page: what its stream says."""

    def __init__(self, answer: httpx.Response) -> None:
        self._told: asyncio.Queue[str | None] = asyncio.Queue()
        self.reading = asyncio.create_task(self._read(answer))

    async def _read(self, answer: httpx.Response) -> None:
        async for event in parsed(answer):
            self._told.put_nowait(event.kind)
        self._told.put_nowait(None)

    async def changed(self) -> None:
        """Waits until it is told of a change."""
        assert await asyncio.wait_for(self._told.get(), PATIENCE) == "changed"

    async def is_quiet(self, seconds: float = 1.2) -> bool:
        """Whether it is told nothing for a time."""
        try:
            await asyncio.wait_for(self._told.get(), seconds)
        except TimeoutError:
            return True
        return False

    async def end(self) -> None:
        """Waits until the stream ends; what it is told until then doesn't count."""
        async with asyncio.timeout(PATIENCE):
            while await self._told.get() is not None:
                continue


@asynccontextmanager
async def page(url: str, token: str, of: str) -> AsyncIterator[Page]:
    """A page that watches, and was told that it does."""
    async with (
        asking(url, token) as client,
        client.stream("GET", "/console/changes", params={"of": of}) as answer,
    ):
        assert answer.status_code == 200, (await answer.aread(), answer.status_code)
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = Page(answer)
        await found.changed()
        try:
            yield found
        finally:
            found.reading.cancel()


make_yearly = partial(make_schedule, task="jobs.add", cron="0 0 1 1 *")


def reserve(sql: Sql) -> None:
    insert(sql, "reservations", {"lane": "l", "task": "t", "created_by": "user:root"}, "id")


def execute(sql: Sql, state: str) -> None:
    recorded = None if state == "running" else "now"
    make_execution(sql, make_job(sql, state), state, recorded_at=recorded)


#: What is watched, what is done, and what of it is to be told.
CASES: dict[str, Callable[[Web, Sql], Any]] = {
    "schedules": lambda web, sql: make_tick(sql, make_yearly(sql, "new")),
    "schedule:s": lambda web, sql: sql("UPDATE pgbeat.schedules SET paused_at = now()"),
    "jobs": lambda web, sql: make_job(sql),
    "groups": lambda web, sql: make_job(sql),
    "lanes": lambda web, sql: reserve(sql),
    "queues": lambda web, sql: web.admin.post("/jobs", json={"task": "jobs.add", "args": [1]}),
    "beats": lambda web, sql: sql("SELECT pg_advisory_lock(%s)", web.settings.leader_key),
    "webhooks": lambda web, sql: make_delivery(sql, make_webhook(sql)),
    "templates": lambda web, sql: web.admin.put("/templates/t", json={"task": "jobs.add"}),
    "calendars": lambda web, sql: web.admin.put("/templates/u", json={"task": "jobs.add"}),
    "audit": lambda web, sql: web.admin.put("/lanes/other", json={"max_running": 1}),
    "overview": lambda web, sql: make_tick(sql, make_yearly(sql, "newer")),
    "errors": lambda web, sql: execute(sql, "failed"),
    "tasks": lambda web, sql: execute(sql, "completed"),
    "workers": lambda web, sql: execute(sql, "running"),
    "events": lambda web, sql: web.admin.post("/events", json={"key": "k", "value": 1}),
}


@pytest.mark.slow
async def test_each_page_is_told_of_what_it_shows(web: Web, sql: Sql) -> None:
    """And of nothing when nothing happens."""
    make_lane(sql, "l", 1)
    make_yearly(sql)
    assert CASES.keys() == {"jobs", "groups", "templates", "schedule:s", *changes._MARKS}
    root = web.token("root", "admin")

    with served(web) as url:
        for of, do in CASES.items():
            async with page(url, root, of) as open_page:
                assert await open_page.is_quiet(0.7), of
                await asyncio.to_thread(do, web, sql)
                await open_page.changed()


async def test_a_schedule_is_told_of_by_its_name(web: Web, sql: Sql) -> None:
    """With what became of its jobs; not of others."""
    own, other = make_yearly(sql, "b: c%"), make_yearly(sql, "other")
    job_id = make_job(sql, schedule_id=own, state="running")

    with served(web) as url:
        async with page(url, web.token("root", "admin"), "schedule:b: c%") as open_page:
            sql("UPDATE pgbeat.schedules SET paused_at = now() WHERE id = %s", other)
            assert await open_page.is_quiet()
            sql(
                "UPDATE pgbeat.jobs SET state = 'failed', finished_at = now() WHERE id = %s", job_id
            )
            await open_page.changed()
            sql("DELETE FROM pgbeat.schedules WHERE id = %s", own)
            await open_page.changed()


async def test_a_job_is_told_of_until_it_is_gone(web: Web, sql: Sql) -> None:
    """Also after it has ended: it may be tried again."""
    job_id = make_job(sql, state="running", started_at="2026-01-01T00:00:00Z")
    make_execution(sql, job_id)

    with served(web) as url:
        async with page(url, web.token("alice"), f"job:{job_id}") as open_page:
            sql("UPDATE pgbeat.executions SET progress_done = 3")
            await open_page.changed()
            sql("UPDATE pgbeat.jobs SET state = 'failed', finished_at = now()")
            await open_page.changed()
            sql("UPDATE pgbeat.jobs SET retried_by = %s", uuid4())
            await open_page.changed()
            sql("DELETE FROM pgbeat.jobs")
            await open_page.changed()
            assert await open_page.is_quiet()


async def test_a_user_is_told_of_their_own_jobs(web: Web, sql: Sql) -> None:
    make_job(sql)

    with served(web) as url:
        async with page(url, web.token("alice"), "jobs") as open_page:
            make_job(sql, created_by="user:bob")
            assert await open_page.is_quiet()
            make_job(sql)
            await open_page.changed()


def test_what_is_for_administrators(web: Web) -> None:
    alice = web.browser(web.token("alice"))
    for of in changes._MARKS.keys() | {"schedule:s"}:
        assert alice.get("/console/changes", params={"of": of}).status_code == 403, of
        assert web.nobody.get("/console/changes", params={"of": of}).status_code == 303, of


def test_what_nothing_is_told_of(web: Web, sql: Sql) -> None:
    for of, status in (
        ("cookies", 422),
        ("", 422),
        ("job:7", 422),
        (f"job:{UUID(int=7)}", 404),
        ("x" * 251, 422),
        ("schedule:\0", 422),  # one that the database refuses would end the news of all
        (None, 422),
    ):
        params = {} if of is None else {"of": of}
        assert web.admin.get("/console/changes", params=params).status_code == status, of
    of_another = {"of": f"job:{make_job(sql)}"}
    assert web.other.get("/console/changes", params=of_another).status_code == 404


def test_a_schedule_that_is_not_there_is_quiet(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "LONGEST", 1.0)
    answer = web.admin.get("/console/changes", params={"of": "schedule:'; DROP TABLE x --"})
    assert answer.text.count("event: changed") == 1


def test_one_look_is_for_all(web: Web, sql: Sql) -> None:
    """Two statements, however many pages are open, and as many threads as without them."""
    topics = ["jobs", f"job:{make_job(sql)}", "schedules", "schedule:s", "lanes", "queues", "audit"]
    make_yearly(sql)
    root = web.token("root", "admin")
    engine = web.app.state.pgbeat._engine

    async def look(url: str, statements: list[str]) -> None:
        async with asking(url, root) as client, asyncio.TaskGroup() as group:
            told = asyncio.Semaphore(0)
            is_over = asyncio.Event()

            async def one(of: str) -> None:
                given = {"of": of}
                async with client.stream("GET", "/console/changes", params=given) as answer:
                    open_page = Page(answer)
                    await open_page.changed()
                    told.release()
                    await is_over.wait()
                    open_page.reading.cancel()

            for number in range(28):
                group.create_task(one(topics[number % len(topics)]))
            for _ in range(28):
                await told.acquire()
            assert watching(web).count == 28
            before, looked = len(statements), watching(web).rounds
            while watching(web).rounds < looked + 4:
                await asyncio.sleep(0.01)
            assert engine.pool.checkedout() <= 1
            found = [s for s in statements[before:] if "tokens" not in s]
            taken = watching(web).rounds - looked
            assert len(found) <= 3 * (taken + 1), found
            is_over.set()

    with served(web) as url, web.counted() as statements:
        asyncio.run(asyncio.wait_for(look(url, statements), 2 * PATIENCE))
        until(lambda: watching(web).count == 0, PATIENCE, "the streams are closed")


@pytest.mark.parametrize(
    "change",
    ["revoked_at = now()", "created_at = now() - interval '2 h', expires_at = now()"],
    ids=["revoked", "expired"],
)
async def test_a_stream_ends_with_its_token(
    web: Web, sql: Sql, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """And those of others go on."""
    monkeypatch.setattr(watch, "CHECKED", 0.1)
    job_id = make_job(sql)

    with served(web) as url:
        token, other = web.token("alice"), web.token("root", "admin")
        async with (
            page(url, token, "jobs") as ended,
            page(url, other, "jobs") as stays,
            asking(url, token) as client,
            client.stream("GET", f"/jobs/{job_id}/events") as answer,
        ):
            sql(f"UPDATE pgbeat.tokens SET {change} WHERE actor = 'alice'")
            await ended.end()
            await Page(answer).end()
            assert await stays.is_quiet(0.5)
            assert watching(web).count == 1


async def test_a_stream_ends_with_its_jwt(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    claims = {"sub": "alice", "exp": int(now) + 3600}
    # A second before it is over, which is ten seconds later: clocks may differ by so much.
    monkeypatch.setattr(issuer, "time", SimpleNamespace(time=lambda: int(now) + 3609))
    with opened(app, web_jwt_key=KEY) as web, served(web) as url:
        token = jwt.encode(claims, KEY, algorithm="HS256")

        async with page(url, token, "jobs") as open_page:
            await open_page.end()


async def test_closing_ends_streams_and_those_that_come(web: Web) -> None:
    root = web.token("root", "admin")

    with served(web) as url:
        async with page(url, root, "audit") as one, page(url, root, "jobs") as other:
            watching(web).close()
            await one.end()
            await other.end()
        async with asking(url, root) as client:
            answer = await client.get("/console/changes", params={"of": "jobs"})
            assert answer.text == api.BEGINNING


def test_pages_say_what_they_are_told_of(web: Web, sql: Sql) -> None:
    make_yearly(sql, "b: c%")
    job_id = make_job(sql)
    root = web.browser(web.token("root", "admin"))
    for path, of in {
        "schedules": "schedules",
        "schedules/b%3A%20c%25": "schedule%3Ab%3A+c%25",
        "jobs": "jobs",
        f"jobs/{job_id}": f"job%3A{job_id}",
        "lanes": "lanes",
        "queues": "queues",
        "beats": "beats",
        "audit": "audit",
    }.items():
        text = root.get(f"/console/{path}").text
        assert f'data-changes="/console/changes?of={of}"' in text, path
    assert "data-changes" not in root.get("/login").text


def test_marks_are_read_by_an_index(sql: Sql) -> None:
    """What is asked for twice a second goes through no table that grows."""
    sql("SET enable_seqscan = off")  # what a table that was just vacuumed empty is read by
    for name in ("audit", "ticks", "made", "began", "ended"):
        statement = stream_queries._MARKS[name].replace(":namespace", "'default'")
        plan = "\n".join(row[0] for row in sql(f"EXPLAIN {statement}"))
        assert "Index" in plan, plan


@pytest.mark.slow
def test_the_server_ends_at_once_though_streams_are_open(processes: Processes) -> None:
    """They end whole; nothing has to be cut."""
    process = web_process(processes)
    link = served_by(process)
    headers = {"Authorization": f"Bearer {make_token(processes.database, 'root', 'admin')}"}
    with (
        httpx.Client(base_url=link, headers=headers, timeout=PATIENCE) as client,
        client.stream("GET", "console/changes", params={"of": "jobs"}) as answer,
    ):
        told, before = answer.iter_text(), ""
        while "event: changed" not in before:
            before += next(told)
        assert before.startswith("retry: ")
        process.send_signal(signal.SIGTERM)
        assert (before + "".join(told)).endswith("\n\n")
    assert process.wait(20) == 0
    assert "Cancel" not in process.output
    assert process.output.endswith("Stopped.\n")
