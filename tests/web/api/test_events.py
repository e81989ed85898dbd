"""`/jobs/events`: what becomes of jobs, as server-sent events, of which many are open at once."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from pgbeat.web import slow_clients
from pgbeat.web.api.jobs import events as api
from pgbeat.web.watch import StreamWatcher
from tests.support.command_line import Sql
from tests.support.databases import end_sessions
from tests.support.processes import until
from tests.support.rows import make_job
from tests.support.web import PATIENCE, Web, done, served
from tests.web.api.made_jobs import make, tell


class Event:
    """A server-sent event."""

    def __init__(self, written: str) -> None:
        fields = dict(line.split(": ", 1) for line in written.splitlines() if ": " in line)
        self.kind, self.id = fields.get("event"), fields.get("id")
        self.data: Any = json.loads(fields["data"]) if "data" in fields else None


async def parsed(answer: httpx.Response) -> AsyncIterator[Event]:
    """The events of an answer; comments are left out."""
    rest = ""
    async for text in answer.aiter_text():
        *whole, rest = (rest + text).split("\n\n")
        for written in whole:
            event = Event(written)
            if event.kind is not None:
                yield event


@asynccontextmanager
async def asking(url: str, token: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client with a token, of any number of connections."""
    limits = httpx.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(
        base_url=url, headers=headers, limits=limits, timeout=PATIENCE
    ) as client:
        yield client


@asynccontextmanager
async def events_of(url: str, token: str, path: str) -> AsyncIterator[AsyncIterator[Event]]:
    """The events at a path, as they come."""
    async with asking(url, token) as client, client.stream("GET", path) as answer:
        assert answer.status_code == 200
        yield parsed(answer)


def watch(web: Web) -> StreamWatcher:
    """The app's watch, once somebody watches."""
    found: StreamWatcher = until(lambda: getattr(web.app.state, "pgbeat_watch", None), PATIENCE)
    return found


def texts(answer: httpx.Response) -> list[Event]:
    """The events of an answer that has ended."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    found = [Event(written) for written in answer.text.split("\n\n")]
    return [event for event in found if event.kind is not None]


def test_of_one_that_has_ended_that_is_told(web: Web, sql: Sql) -> None:
    job_id = make_job(sql, state="failed", error="oops")
    job, end = texts(web.user.get(f"/jobs/{job_id}/events"))
    assert (job.kind, end.kind, end.id) == ("job", "end", "end")
    wanted = {"id": job_id, "state": "failed", "error": "oops", "progress": None}
    assert job.data == end.data
    assert job.data.items() >= wanted.items()
    assert job.data.keys() - done(web.user.get(f"/jobs/{job_id}")).keys() == {"execution"}


def test_who_was_told_of_the_end_is_told_to_stop(web: Web, sql: Sql) -> None:
    job_id = make_job(sql, state="completed")
    answer = web.user.get(f"/jobs/{job_id}/events", headers={"Last-Event-ID": "end"})
    assert (answer.status_code, answer.content) == (204, b"")


@pytest.mark.anyio
async def test_the_progress_of_a_job_until_it_ends(web: Web) -> None:
    job_id = make(web.user)["id"]

    STEPS: list[dict[str, Any]] = [
        {},
        {"progress_done": 1, "progress_total": 4},
        {"progress_done": 4, "progress_total": 4, "progress_message": "<b>done</b>\n\nid: end"},
        {"state": "completed", "job_state": "completed"},
    ]
    with served(web) as url:
        events: list[Event] = []
        async with events_of(url, web.token("alice"), f"/jobs/{job_id}/events") as told:
            steps = iter(STEPS)
            run: str | None = None
            async for event in told:
                events.append(event)
                step = next(steps, None)
                if step is not None:
                    run = await asyncio.to_thread(
                        tell, web, job_id, is_new=run is None, run=run, **step
                    )
        assert [event.kind for event in events] == 5 * ["job"] + ["end"]
        assert [e.data["state"] for e in events] == [
            "pending",
            "running",
            "running",
            "running",
            "completed",
            "completed",
        ]
        assert events[1].data["progress"] is None
        assert events[2].data["progress"] == {"done": 1, "total": 4, "percent": 25, "message": None}
        assert events[3].data["progress"]["message"] == "<b>done</b>\n\nid: end"
        assert events[3].id is None
        until(lambda: watch(web).count == 0, PATIENCE, "the stream is closed")


@pytest.mark.anyio
async def test_of_one_that_is_deleted_the_end_is_told(web: Web, sql: Sql) -> None:
    job_id = make_job(sql)

    with served(web) as url:
        events: list[Event] = []
        async with events_of(url, web.token("alice"), f"/jobs/{job_id}/events") as told:
            async for event in told:
                events.append(event)
                await asyncio.to_thread(sql, "DELETE FROM pgbeat.jobs")
    assert [(event.kind, event.data["state"]) for event in events] == [
        ("job", "pending"),
        ("end", None),
    ]


def test_all_that_one_may_see(web: Web, sql: Sql) -> None:
    """Of old jobs nothing until they change; of new ones at once; of others' nothing."""
    old = make_job(sql)
    make_job(sql, state="completed")

    async def follow(url: str, token: str, count: int, ready: asyncio.Barrier) -> list[Event]:
        found = []
        async with events_of(url, token, "/jobs/events") as told:
            await ready.wait()
            async for event in told:
                found.append(event)
                if len(found) == count:
                    break
        return found

    async def both(url: str) -> tuple[list[Event], list[Event]]:
        ready = asyncio.Barrier(3)
        users = asyncio.create_task(follow(url, web.token("alice"), 2, ready))
        admins = asyncio.create_task(follow(url, web.token("root", "admin"), 3, ready))
        await ready.wait()
        looks = watch(web).rounds
        while watch(web).rounds < looks + 2:
            await asyncio.sleep(0.01)
        made.append(await asyncio.to_thread(make_job, sql))
        await asyncio.to_thread(make_job, sql, created_by="user:bob")
        cancel = f"/jobs/{old}/cancel"
        assert (await asyncio.to_thread(web.user.post, cancel)).status_code == 200
        return await users, await admins

    made: list[str] = []
    with served(web) as url:
        alices, roots = asyncio.run(asyncio.wait_for(both(url), 2 * PATIENCE))
    assert sorted((e.data["id"], e.data["state"]) for e in alices) == sorted(
        [(made[0], "pending"), (old, "cancelled")]
    )
    assert {e.data["created_by"] for e in roots} == {"user:alice", "user:bob"}


@pytest.mark.slow
def test_200_streams_are_served_by_one_thread(web: Web, sql: Sql) -> None:
    """And one connection, each look being one statement; all hear of the job's end."""
    count = 200
    jobs = [make_job(sql, state="running") for _ in range(20)]
    engine = web.app.state.pgbeat._engine

    async def follow(client: httpx.AsyncClient, job_id: str, opened: asyncio.Semaphore) -> str:
        status = ""
        async with client.stream("GET", f"/jobs/{job_id}/events") as answer:
            assert answer.status_code == 200
            async for event in parsed(answer):
                if event.data["state"] == "running":
                    opened.release()
                status = str(event.data["state"])
        return status

    async def all_of_them(url: str, token: str) -> list[str]:
        opened = asyncio.Semaphore(0)
        async with asking(url, token) as client:
            streams = [
                asyncio.create_task(follow(client, jobs[number % 20], opened))
                for number in range(count)
            ]
            for _ in range(count):
                await opened.acquire()
            assert watch(web).count == count
            threads = [t.name for t in threading.enumerate() if t.name == "pgbeat watch"]
            assert threads == ["pgbeat watch"]
            looks = watch(web).rounds
            while watch(web).rounds < looks + 3:
                await asyncio.sleep(0.01)
            assert engine.pool.checkedout() <= 1
            await asyncio.to_thread(
                sql, "UPDATE pgbeat.jobs SET state = 'completed', finished_at = now()"
            )
            return list(await asyncio.gather(*streams))

    with served(web) as url:
        ends = asyncio.run(asyncio.wait_for(all_of_them(url, web.token("alice")), 4 * PATIENCE))
        assert ends == count * ["completed"]
        until(lambda: watch(web).count == 0, PATIENCE, "the streams are closed")
        named = "pgbeat watch"
        until(lambda: all(t.name != named for t in threading.enumerate()), PATIENCE, "nobody looks")


def test_a_stream_shows_that_it_is_alive_and_ends(
    web: Web, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client comes again, with a token that is still good."""
    monkeypatch.setattr(api, "HEARTBEAT", 0.05)
    monkeypatch.setattr(api, "LONGEST", 0.5)
    job_id = make_job(sql)
    written = web.user.get(f"/jobs/{job_id}/events").text
    assert written.startswith("retry: 3000\n")
    assert ": alive\n\n" in written
    assert "event: end" not in written


def test_streams_outlive_a_database_that_is_away(web: Web, sql: Sql) -> None:
    job_id = make_job(sql)

    async def follow(url: str, token: str) -> list[str]:
        found = []
        async with events_of(url, token, f"/jobs/{job_id}/events") as told:
            async for event in told:
                found.append(event.data["state"])
                if len(found) == 1:
                    await asyncio.to_thread(end_sessions, sql, "pgbeat web%")
                    await asyncio.to_thread(
                        sql, "UPDATE pgbeat.jobs SET state = 'cancelled', finished_at = now()"
                    )
        return found

    with served(web) as url:
        found = asyncio.run(asyncio.wait_for(follow(url, web.token("alice")), 2 * PATIENCE))
    assert found == ["pending", "cancelled", "cancelled"]


def test_that_a_database_is_away_is_logged_once(
    web: Web, sql: Sql, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgbeat.web.watch._PAUSE", 0.05)
    watcher = StreamWatcher(web.app.state.pgbeat)

    def fail_often() -> None:
        failed = "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        until(lambda: watcher.rounds)
        [(before,)] = sql(failed)
        sql("ALTER SCHEMA pgbeat RENAME TO gone")
        until(lambda: sql(failed)[0][0] > before + 3)

    async def watch() -> None:
        with watcher.stream(None, None, user="user:alice"):
            await asyncio.to_thread(fail_often)

    try:
        asyncio.run(watch())
    finally:
        sql("ALTER SCHEMA gone RENAME TO pgbeat")
    [record] = caplog.records
    assert record.getMessage().startswith("Streams can't read jobs, trying again: ")


def test_too_many_of_one_user_are_refused(
    web: Web, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgbeat.web.watch.EACH", 1)
    path = f"/jobs/{make_job(sql)}/events"

    async def look(url: str, token: str) -> None:
        async with asking(url, token) as client, client.stream("GET", "/jobs/events"):
            for asked in ("/jobs/events", path, "/console/changes?of=jobs"):
                refused = await client.get(asked)
                assert refused.status_code == 503
                assert "user:alice has 1 streams open in this process" in refused.text
            headers = {"Authorization": f"Bearer {web.token('root', 'admin')}"}
            async with client.stream("GET", path, headers=headers) as answer:
                assert answer.status_code == 200

    with served(web) as url:
        asyncio.run(asyncio.wait_for(look(url, web.token("alice")), PATIENCE))


def test_a_client_that_takes_nothing_is_let_go(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream would otherwise outlive its token, and its socket the stream."""
    monkeypatch.setattr(api, "STALLED", 0.5)
    monkeypatch.setattr(slow_clients, "DEADLINE", 1.0)
    monkeypatch.setattr(api, "HEARTBEAT", 0.001)
    monkeypatch.setattr(api, "ALIVE", ": alive" + " " * 1_000_000 + "\n\n")
    with served(web) as url, socket.socket() as sock:
        host = httpx.URL(url)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect((host.host, host.port))
        asked = f"GET /jobs/events HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {web.token('a')}"
        sock.sendall(f"{asked}\r\n\r\n".encode())
        until(lambda: watch(web).count == 1, PATIENCE, "the stream is open")
        until(lambda: watch(web).count == 0, PATIENCE, "the stream is closed")
        until(lambda: not web.connections, PATIENCE, "so is the connection")


def test_too_many_are_refused(web: Web, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgbeat.web.watch.MOST", 0)
    job_id = make_job(sql)
    for path in (f"/jobs/{job_id}/events", "/jobs/events", "/console/changes?of=jobs"):
        answer = web.user.get(path)
        assert answer.status_code == 503
        assert "streams are open in this process" in answer.text
