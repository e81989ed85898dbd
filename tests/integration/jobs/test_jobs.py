"""Jobs: which state may follow which, whoever writes; lines and the beginnings of ids."""

from collections.abc import Callable
from functools import partial
from itertools import product
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection

from pgbeat.access import actors
from pgbeat.database.tables import JOB_STATES
from pgbeat.errors import Forbidden, NotFound
from pgbeat.jobs.checks import permissions
from pgbeat.jobs.lanes import waiting as lines
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.model import ENDED
from pgbeat.jobs.states import retries
from tests.support.command_line import Sql
from tests.support.jobs import ADMIN, ALICE, BOB
from tests.support.rows import make_job, make_lane

#: What may follow each state: `docs/reference/jobs.md` draws it.
MAY_FOLLOW = {
    "pending": {"scheduled", "running", "paused", *ENDED},
    "scheduled": {"pending", "running", "paused", *ENDED},
    "running": {"pending", "scheduled", *ENDED},
    "paused": {"pending", "scheduled", "failed", "cancelled", "skipped"},
    **{state: set[str]() for state in ENDED},
}


def test_every_transition(sql: Sql) -> None:
    assert set(MAY_FOLLOW) == set(JOB_STATES)
    for old, new in product(JOB_STATES, JOB_STATES):
        job = make_job(sql, old)
        change = (
            "UPDATE pgbeat.jobs SET state = %s, started_at = now(), finished_at = now() "
            "WHERE id = %s"
        )
        if old == new or new in MAY_FOLLOW[old]:
            sql(change, new, job)
            expected = new
        else:
            with pytest.raises(psycopg.errors.CheckViolation) as refused:
                sql(change, new, job)
            assert str(refused.value).startswith(f"job {job} can't go from {old} to {new}")
            expected = old
        assert sql("SELECT state FROM pgbeat.jobs WHERE id = %s", job) == [(expected,)], (old, new)


def test_no_state_without_what_goes_with_it(sql: Sql) -> None:
    for values in (
        {"state": "nonsense"},
        {"state": "running", "started_at": None},
        {"state": "failed", "finished_at": None},
        {"state": "pending", "awaits_approval": True},
    ):
        with pytest.raises(psycopg.errors.CheckViolation):
            make_job(sql, **values)


def codes(act: Callable[[], object]) -> tuple[str, str]:
    """Returns the code and the message of a `NotFound`."""
    with pytest.raises(NotFound) as caught:
        act()
    return caught.value.code, str(caught.value)


def test_an_id_may_be_cut_down(sql: Sql, connection: Connection) -> None:
    ids = [
        "abcd0000-0000-4000-8000-000000000000",
        "abcd1000-0000-4000-8000-000000000000",
        "abcdffff-ffff-4fff-8fff-ffffffffffff",
    ]
    make_job(sql, id=ids[0])
    make_job(sql, id=ids[1], created_by=BOB.name)
    make_job(sql, id=ids[2], created_by=BOB.name)
    make_job(sql, id="abce0000-0000-4000-8000-000000000000")
    make_job(sql, id="12340000-0000-4000-8000-000000000000", namespace="other")

    def find(text: str, actor: actors.Actor = ADMIN) -> str:
        return str(permissions.find(connection, actor, text, namespace="default").id)

    assert [find("abcd0"), find("ABCD1000"), find("abcd-f"), find(ids[1])] == [
        ids[0],
        ids[1],
        ids[2],
        ids[1],
    ]
    assert find("abcd", ALICE) == ids[0], "her own is meant"
    several = codes(lambda: find("abcd"))
    assert several[0] == "ambiguous_id"
    assert all(f"{job} jobs.add, pending" in several[1] for job in ids), several
    assert codes(lambda: find("abcd", BOB))[0] == "ambiguous_id"
    assert ids[0] not in codes(lambda: find("abcd", BOB))[1], "only his own are meant"
    for text, code in (("1234", "not_found"), ("abc", "invalid_id"), ("wxyz", "invalid_id")):
        assert codes(partial(find, text))[0] == code, text
    with pytest.raises(Forbidden, match="abcd1000"):
        find("abcd1", ALICE)


def test_at_most_five_ids_are_named(sql: Sql, connection: Connection) -> None:
    for number in range(7):
        make_job(sql, id=f"abcd{number}000-0000-4000-8000-000000000000")
    _, said = codes(lambda: permissions.find(connection, ADMIN, "abcd", namespace="default"))
    assert said.count("jobs.add") == 5 and said.endswith("…")


def order(connection: Connection, name: str = "l") -> list[str]:
    """First letters of the ids of those that wait in the lane, as they get its slots."""
    found = connection.exec_driver_sql(
        "SELECT id FROM pgbeat.jobs WHERE lane = %s AND dispatched_at IS NULL "
        "AND state = 'pending' ORDER BY priority DESC, position, created_at, id",
        (name,),
    )
    return [str(job)[0] for (job,) in found]


def waiting(sql: Sql, letters: str, **values: object) -> dict[str, str]:
    """Jobs in the line of lane `l`, in this order."""
    return {
        letter: make_job(sql, id=letter * 8 + "-0000-4000-8000-000000000000", lane="l", **values)
        for letter in letters
    }


def test_places(sql: Sql, connection: Connection) -> None:
    make_lane(sql)
    ids = waiting(sql, "abc") | waiting(sql, "de", priority=5)
    assert order(connection) == ["d", "e", "a", "b", "c"]
    places = {key: lines.place(connection, jobs.get(connection, ids[key])) for key in "deabc"}
    assert places == {"d": 0, "e": 1, "a": 2, "b": 3, "c": 4}
    assert lines.length(connection, "default", "l") == 5
    # Who has a slot, or waits for something else, stands in no line.
    sql("UPDATE pgbeat.jobs SET dispatched_at = now() WHERE id = %s", ids["d"])
    sql("UPDATE pgbeat.jobs SET state = 'paused' WHERE id = %s", ids["e"])
    assert lines.place(connection, jobs.get(connection, ids["a"])) == 0
    assert lines.length(connection, "default", "l") == 3


@pytest.mark.parametrize(
    ("moved", "where", "other", "expected"),
    [
        ("c", "front", None, "cabd"),
        ("a", "back", None, "bcda"),
        ("d", "before", "a", "dabc"),
        ("d", "before", "b", "adbc"),
        ("a", "after", "d", "bcda"),
        ("a", "after", "c", "bcad"),
        ("b", "after", "a", "abcd"),
        ("b", "before", "c", "abcd"),
        ("a", "front", None, "abcd"),
        ("d", "back", None, "abcd"),
    ],
)
@pytest.mark.parametrize("position", [None, 7])
def test_moves(
    sql: Sql,
    connection: Connection,
    moved: str,
    where: lines.Where,
    other: str | None,
    expected: str,
    position: int | None,
) -> None:
    make_lane(sql)
    ids = waiting(sql, "abcd", **({} if position is None else {"position": position}))
    beside = None if other is None else jobs.get(connection, ids[other])
    job = jobs.get(connection, ids[moved])
    assert lines.move(connection, job, where, beside, priority=0) is not None
    assert "".join(order(connection)) == expected


def test_moved_to_the_same_place_again_and_again(sql: Sql, connection: Connection) -> None:
    """There is always a middle between two."""
    make_lane(sql)
    ids = waiting(sql, "abc")
    for _ in range(60):
        for letter, other in (("c", "b"), ("b", "c")):
            job, beside = jobs.get(connection, ids[letter]), jobs.get(connection, ids[other])
            assert lines.move(connection, job, "before", beside, priority=0) is not None
            assert order(connection) == ["a", letter, other]


def test_who_left_the_line_is_not_moved(sql: Sql, connection: Connection) -> None:
    make_lane(sql)
    ids = waiting(sql, "ab")
    job = jobs.get(connection, ids["b"])
    sql("UPDATE pgbeat.jobs SET dispatched_at = now() WHERE id = %s", ids["b"])
    assert lines.move(connection, job, "front", priority=0) is None


def test_a_chain_however_it_branches(sql: Sql, connection: Connection) -> None:
    first = make_job(sql, "failed")
    second = make_job(sql, "failed", retry_of=first)
    third = make_job(sql, "failed", retry_of=second)
    by_hand = make_job(sql, "pending", retry_of=first)
    make_job(sql, "failed")
    for job in (first, second, third, by_hand):
        found = retries.chain(connection, UUID(job))
        assert [str(each.id) for each in found] == [first, second, third, by_hand]
