"""The console's pages of lanes: made, changed, reordered, released, deleted; without scripts."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery

from pgbeat.errors import NoSlot
from pgbeat.jobs.submitting import direct
from tests.support.command_line import Sql
from tests.support.pages import after, html
from tests.support.processes import until
from tests.support.rows import insert, make_job, make_lane
from tests.support.web import Web, done, problem

GPU = "/console/lanes/gpu"
#: The form as it is of a lane with a limit of 1.
BEFORE = (
    '{"max_running": "1", "rate": "", "rate_key": "", "fair_by": "",'
    '"max_per_key": "", "policy": "", "options": ""}'
)


@pytest.fixture
def waiting(sql: Sql) -> Callable[..., str]:
    """Writes a job that waits in lane gpu; its id."""

    def make(position: int, **values: Any) -> str:
        return make_job(sql, lane="gpu", position=position, task=f"t{position}", **values)

    return make


def line(sql: Sql) -> list[str]:
    """The tasks in the line of lane gpu, in its order."""
    return [
        row[0]
        for row in sql(
            """SELECT task FROM pgbeat.jobs WHERE lane = 'gpu' AND dispatched_at IS NULL
                  AND state = 'pending'
                ORDER BY priority DESC, position, created_at"""
        )
    ]


def saved(sql: Sql, name: str = "gpu") -> tuple[Any, ...]:
    [row] = sql(
        """SELECT max_running, rate_limit, extract(epoch FROM rate_period)::int, rate_key, policy,
                  options FROM pgbeat.lanes WHERE name = %s""",
        name,
    )
    return row


def test_a_job_of_a_fair_lane_is_moved_within_its_key(
    page: Any, sql: Sql, waiting: Callable[..., str]
) -> None:
    make_lane(sql, "gpu", 0, fair_by="kwargs.n")
    first, other, second = (waiting(n, kwargs=f'{{"n": {n % 2}}}') for n in (1, 2, 3))
    shown = str(html(page.get(GPU)))
    assert f'name="ahead" value="{first}"' in shown
    assert f'name="behind" value="{second}"' in shown
    assert f'value="{other}"' not in shown.replace(f'name="job" value="{other}"', "")


# -- changed


def test_limits_are_changed(page: Any, sql: Sql, waiting: Any) -> None:
    """Who may go by the new ones does at once."""
    done(page.put("/lanes/gpu", json={"max_running": 0}), 201)
    jobs = [waiting(number) for number in (1, 2, 3)]
    form = html(page.get(GPU)).edit
    assert form["max_running"] == "0"
    changes = {"max_running": "2", "rate": "100/15 minutes"}
    said = after(page, page.post(GPU, data=form | changes)).words
    assert "Lane 'gpu' was changed." in said
    assert "2 slots, 100/15 min" in said
    assert saved(sql)[:3] == (2, 100, 900)
    assert line(sql) == ["t3"]
    assert jobs[0][:8] in html(page.get(GPU)).words
    # The rate that the form shows is one that it takes.
    form = html(page.get(GPU)).edit
    assert form["rate"] == "100/15 min"
    assert "was changed" in after(page, page.post(GPU, data=form | {"rate": ""})).words
    assert saved(sql)[:3] == (2, None, None)


def test_what_others_changed_meanwhile_stays(page: Any, sql: Sql) -> None:
    done(page.put("/lanes/gpu", json={"max_running": 1, "rate": "5/second"}), 201)
    data = {"do": "edit", "before": BEFORE, "max_running": "3"}
    after(page, page.post(GPU, data=data))
    assert saved(sql)[:3] == (3, 5, 1)
    said = after(page, page.post(GPU, data={"do": "edit", "before": BEFORE, "max_running": "1"}))
    assert "Nothing was changed." in said


def test_a_wrong_change_changes_nothing(page: Any, sql: Sql) -> None:
    make_lane(sql, "gpu", 1)
    data = {"do": "edit", "before": BEFORE, "max_running": "2", "rate": "often"}
    text = html(page.post(GPU, data=data), 422)
    assert list(text.wrong) == ["rate"]
    assert 'name="max_running" value="2"' in text
    assert '<details class="edit" id="edit" open>' in text
    assert saved(sql)[:2] == (1, None)
    html(page.post(GPU, data={"do": "edit", "before": "{", "max_running": "2"}), 422)
    # One that was deleted meanwhile isn't made again.
    sql("DELETE FROM pgbeat.lanes")
    html(page.post(GPU, data={"do": "edit", "before": BEFORE, "max_running": "2"}), 404)
    assert sql("SELECT count(*) FROM pgbeat.lanes") == [(0,)]
    assert sql("SELECT 1 FROM pgbeat.audit") == []


# -- its line


def test_a_line_is_reordered(page: Any, sql: Sql, waiting: Any) -> None:
    done(page.put("/lanes/gpu", json={"max_running": 0}), 201)
    jobs = [waiting(number) for number in range(1, 5)]
    assert "of user:alice" in html(page.get(GPU)).words

    def move(verb: str, number: int, **beside: str) -> str:
        answer = page.post(GPU, data={"do": verb, "job": jobs[number - 1]} | beside)
        assert answer.headers["location"] == f"{GPU}#job-{jobs[number - 1]}"
        return after(page, answer).words

    assert "is number 1 of the line" in move("first", 4)
    assert line(sql) == ["t4", "t1", "t2", "t3"]
    move("up", 2, ahead=jobs[0])
    assert line(sql) == ["t4", "t2", "t1", "t3"]
    move("down", 4, behind=jobs[1])
    assert line(sql) == ["t2", "t4", "t1", "t3"]
    move("last", 2)
    assert line(sql) == ["t4", "t1", "t3", "t2"]


def test_buttons_of_a_line_are_named_and_off_at_its_ends(page: Any, waiting: Any) -> None:
    done(page.put("/lanes/gpu", json={"max_running": 0}), 201)
    first, last = waiting(1), waiting(2)
    text = html(page.get(GPU))
    for job_id, off in ((first, ("first", "up")), (last, ("down", "last"))):
        part = text.partition(f'id="job-{job_id}"')[2].partition("</li>")[0]
        for verb in ("first", "up", "down", "last"):
            button = part.partition(f'value="{verb}"')[2].partition("</button>")[0]
            assert f' {job_id[:8]}"' in button
            assert ("disabled" in button) == (verb in off)


def test_moving_past_one_of_another_priority_takes_that_on(
    page: Any, sql: Sql, waiting: Any
) -> None:
    done(page.put("/lanes/gpu", json={"max_running": 0}), 201)
    ahead, job_id = waiting(1, priority=5), waiting(2)
    after(page, page.post(GPU, data={"do": "up", "job": job_id, "ahead": ahead}))
    assert line(sql) == ["t2", "t1"]
    assert sql("SELECT priority FROM pgbeat.jobs WHERE task = 't2'") == [(5,)]


def test_what_can_not_be_done_is_refused(page: Any, sql: Sql, waiting: Any) -> None:
    done(page.put("/lanes/gpu", json={"max_running": 0}), 201)
    job_id, gone = waiting(1), make_job(sql, state="completed", lane="gpu")
    for data, status in (
        ({"do": "up"}, 404),
        ({"do": "up", "job": "{job}"}, 404),
        ({"do": "up", "job": "{job}", "ahead": "{job}"}, 422),
        ({"do": "up", "job": "{job}", "ahead": "{gone}"}, 422),
        ({"do": "first", "job": "{gone}"}, 409),
        ({"do": "first", "job": "x; DROP"}, 404),
        ({"do": "dance"}, 422),
        ({"do": "release"}, 404),
        ({"do": "release", "direct": "direct/99"}, 404),
        ({"do": "release", "direct": "direct/99999999999"}, 404),
        ({"do": "release", "direct": f"direct/{'9' * 5000}"}, 404),
    ):
        given = {key: value.format(job=job_id, gone=gone) for key, value in data.items()}
        html(page.post(GPU, data=given), status)
    assert line(sql) == ["t1"]
    assert sql("SELECT verb FROM pgbeat.audit") == [("create",)]


def test_a_long_line_is_shown_in_part(page: Any, waiting: Any) -> None:
    done(page.put("/lanes/gpu", json={"max_running": 0}), 201)
    for number in range(1, 53):
        job_id = waiting(number)
    text = html(page.get(GPU))
    assert text.count('class="moves"') == 50
    assert "The first 50;" in text
    # The last one shown can go down: behind the next, which isn't shown.
    assert text.count('value="down"') == 50
    assert text.count('name="behind"') == 50
    assert job_id not in text


# -- reservations


@contextmanager
def reserved(app: Celery, web: Web) -> Iterator[list[BaseException]]:
    """A direct execution that waits for a slot; how it ended."""
    ends: list[BaseException] = []

    def run() -> None:
        try:
            direct.run_direct(
                "jobs.add",
                [1],
                lane="gpu",
                timeout=60,
                app=app,
                settings=web.settings,
                created_by="user:alice",
            )
        except BaseException as error:
            ends.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ends
    finally:
        thread.join(60)


def test_a_reservation_is_shown_and_released(app: Celery, web: Web, page: Any, sql: Sql) -> None:
    done(page.put("/lanes/gpu", json={"max_running": 0}), 201)
    with reserved(app, web) as ends:
        [(number,)] = until(lambda: sql("SELECT id FROM pgbeat.reservations"))
        said = html(page.get(GPU)).words
        assert f"direct/{number} jobs.add reserved the next slot, by user:alice" in said
        answer = page.post(GPU, data={"do": "release", "direct": f"direct/{number}"})
        assert f"Direct execution {number} released" in after(page, answer).words
        until(lambda: ends)
    assert isinstance(ends[0], NoSlot)
    assert "was deleted" in str(ends[0])
    assert sql(
        "SELECT verb, kind, subject, actor, before->>'task' FROM pgbeat.audit WHERE kind = 'direct'"
    ) == [("release", "direct", str(number), "user:root", "jobs.add")]


def test_one_that_has_its_slot_is_not_released(web: Web, page: Any, sql: Sql) -> None:
    make_lane(sql, "gpu", 1)

    def reserve(started_at: Any) -> int:
        given = {"lane": "gpu", "task": "jobs.add", "created_by": "user:alice"}
        number = int(insert(sql, "reservations", given | {"started_at": started_at}, "id"))
        sql("SELECT pg_advisory_lock(1885823609, %s)", number)
        return number

    number = reserve("now")
    assert f"direct/{number} running jobs.add user:alice" in html(page.get(GPU)).words
    path = f"/lanes/gpu/reservations/{number}"
    assert "its slot is free when its task" in problem(web.admin.delete(path), 409)
    assert web.admin.delete("/lanes/cpu/reservations/1").status_code == 404
    data = {"do": "release", "direct": f"direct/{number}"}
    assert "is running and can't be released" in html(page.post(GPU, data=data), 409).words
    assert sql("SELECT count(*) FROM pgbeat.reservations") == [(1,)]
    # One that only waits is let go.
    waiting = reserve(None)
    said = done(web.admin.delete(f"/lanes/gpu/reservations/{waiting}"))["message"]
    assert said == f"Direct execution {waiting} released from lane 'gpu'"
    # One whose process is dead is gone.
    sql("SELECT pg_advisory_unlock_all()")
    assert "it is over" in problem(web.admin.delete(path), 404)


def test_tasks_with_a_policy_are_listed(app: Celery, page: Any) -> None:
    """With their lane and the rest of it; or what is wrong with them."""
    app.conf.pgbeat_task_policies = {"jobs.add": {"lane": "gpu", "max_attempts": 3}}
    found = html(page.get("/console/lanes"))
    row = found.one("[aria-label='Tasks with a policy'] tbody tr")
    assert " ".join(row.text_content().split()) == "jobs.add gpu max_attempts 3"
    app.conf.pgbeat_task_policies = {"jobs.add": {"lanes": "gpu"}}
    assert "'lanes' is not a key of it" in html(page.get("/console/lanes")).words
