"""Fair lanes: keys that take turns, and the slots of each."""

import random
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import text

from pgbeat.database import connections
from pgbeat.errors import InvalidJob
from pgbeat.jobs.explaining import explain
from pgbeat.jobs.flow import lifecycle
from pgbeat.jobs.flow.dispatch import dispatch_in_transaction
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes import occupancy, reservations, slots, waiting
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows import new_jobs
from pgbeat.jobs.states import endings
from pgbeat.jobs.verbs import lane_control
from pgbeat.worker.recording.recorder_session import PLANS
from tests.support.databases import connected
from tests.support.explained_plans import explained, pages
from tests.support.jobs import new_job
from tests.support.lanes import Lanes
from tests.support.problems import raises

#: A task that the app doesn't know: its arguments are not checked.
TASK = "shop.sync"
FAIR = {"fair_by": "kwargs.tenant"}
INSERT = """
    INSERT INTO pgbeat.jobs (id, task, args, kwargs, job_source, created_by, is_system_job, lane)
    SELECT gen_random_uuid(), 'shop.sync', '[]', jsonb_build_object('tenant', %s::text), 'system',
           'user:me', false, 'l' FROM generate_series(1, %s)
"""


def tenants(lane_jobs: Lanes, ids: list[str]) -> list[str]:
    rows = lane_jobs.sql("SELECT id::text, coalesce(kwargs ->> 'tenant', 'none') FROM pgbeat.jobs")
    tenant = {row[0]: str(row[1]) for row in rows}
    return [tenant[job] for job in ids]


def of(lane_jobs: Lanes, tenant: str, count: int = 1, **fields: Any) -> list[str]:
    """Puts jobs of a tenant in line; their ids."""
    return lane_jobs.add(count, **{"task": TASK, "kwargs": {"tenant": tenant}} | fields)


def test_ten_thousand_jobs_of_one_delay_anothers_single_job_by_one_turn(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1, **FAIR)
    lane_jobs.sql(INSERT, "a", 10_000)
    first = lane_jobs.dispatch()
    [late] = of(lane_jobs, "b")
    lane_jobs.end(*first)
    assert lane_jobs.dispatch() == [late]


def test_priority_comes_first_and_each_has_its_own_turns(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1, **FAIR)
    of(lane_jobs, "a", 2)
    of(lane_jobs, "b", 2)
    of(lane_jobs, "m", 2, priority=5)
    order = []
    while mine := lane_jobs.dispatch():
        order += tenants(lane_jobs, mine)
        lane_jobs.end(*mine)
        if len(order) == 3:  # a turn of another priority changes nothing here
            of(lane_jobs, "z", 1, priority=9)
    assert order == ["m", "m", "a", "z", "b", "a", "b"]


@pytest.mark.parametrize(
    ("fair_by", "fields", "key"),
    [
        ("task", {"task": "shop.pay"}, "task=shop.pay"),
        ("created_by", {"created_by": "user:ann"}, "created_by=user:ann"),
        ("kwargs.n", {"kwargs": {"n": 17}}, "n=17"),
        ("kwargs.n", {"kwargs": {"n": None}}, "no n"),
        ("kwargs.n", {"kwargs": None}, "no n"),
        ("tag", {"tags": ["b", "a"]}, "tag=a"),
        ("tag:of-", {"tags": ["a", "of-x"]}, "tag=of-x"),
        ("tag:of-", {"tags": ["a"]}, "no tag"),
    ],
)
def test_a_job_has_the_key_that_the_lane_says(
    lane_jobs: Lanes, fair_by: str, fields: dict[str, Any], key: str
) -> None:
    lane_jobs.lane(fair_by=fair_by)
    [job] = lane_jobs.add(1, **fields)
    assert lane_jobs.sql("SELECT fair_key FROM pgbeat.jobs WHERE id = %s", job) == [(key,)]


def test_a_long_key_is_cut_and_still_differs(lane_jobs: Lanes) -> None:
    lane_jobs.lane(**FAIR)
    of(lane_jobs, "x" * 5000 + "a")
    of(lane_jobs, "x" * 5000 + "b")
    keys = {row[0] for row in lane_jobs.sql("SELECT fair_key FROM pgbeat.jobs")}
    assert len(keys) == 2 and max(map(len, keys)) < 220


def test_jobs_without_the_key_take_turns_as_one(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=10, max_per_key=1, **FAIR)
    lane_jobs.add(3, task=TASK)
    of(lane_jobs, "a")
    assert sorted(tenants(lane_jobs, lane_jobs.dispatch())) == ["a", "none"]


def test_waiting_jobs_get_new_keys_when_the_setting_changes(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1)
    of(lane_jobs, "a", 3)
    lane_jobs.dispatch()
    [late] = of(lane_jobs, "b")
    lane_jobs.do(lane_control.save, "l", {"fair_by": "kwargs.tenant", "max_per_key": 1})
    lane_jobs.do(lane_control.save, "l", {"max_running": 5})
    assert lane_jobs.dispatch() == [late]
    lane_jobs.do(lane_control.save, "l", {"fair_by": None, "max_per_key": None})
    assert lane_jobs.sql("SELECT DISTINCT fair_key FROM pgbeat.jobs") == [("",)]
    assert len(lane_jobs.dispatch()) == 2


def test_a_job_that_was_made_while_the_setting_changed_gets_its_key_at_its_turn(
    lane_jobs: Lanes,
) -> None:
    lane_jobs.lane(max_running=9, max_per_key=1, **FAIR)
    of(lane_jobs, "a", 2)
    lane_jobs.sql("UPDATE pgbeat.unfinished_jobs SET fair_key = ''")
    assert tenants(lane_jobs, lane_jobs.dispatch()) == ["a"]
    lane_jobs.lane("r", rate_limit=5, rate_period="1 hour", max_per_key=1, **FAIR)
    of(lane_jobs, "a", 2, lane="r")
    lane_jobs.sql("UPDATE pgbeat.unfinished_jobs SET fair_key = '' WHERE lane = 'r'")
    assert tenants(lane_jobs, lane_jobs.dispatch("r")) == ["a"]


def test_a_change_in_sql_gives_all_that_wait_their_keys(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=2)
    of(lane_jobs, "a", 4)
    [late] = of(lane_jobs, "b")
    lane_jobs.sql("UPDATE pgbeat.lanes SET fair_by = 'kwargs.tenant'")
    assert late in lane_jobs.dispatch()


@pytest.mark.parametrize("more", [{}, {"rate_limit": 5, "rate_period": "1 hour"}])
def test_a_key_of_a_lane_that_was_fair_once_does_not_count(
    lane_jobs: Lanes, more: dict[str, Any]
) -> None:
    """The lane was removed and made anew, or a transaction was open while it changed."""
    lane_jobs.lane(max_running=1, **FAIR)
    [first] = of(lane_jobs, "a", priority=1, state="scheduled", run_at="2100-01-01T00:00:00Z")
    lane_jobs.do(lane_control.remove, "l", force=True)
    lane_jobs.lane(max_running=1, **more)
    lane_jobs.sql("UPDATE pgbeat.unfinished_jobs SET state = 'pending', run_at = NULL")
    of(lane_jobs, "b", priority=1)
    of(lane_jobs, "b", priority=9)
    urgent = lane_jobs.dispatch()
    lane_jobs.end(*urgent)
    assert lane_jobs.dispatch() == [first]
    lane_jobs.end(first)
    lane_jobs.do(lane_control.save, "l", {"fair_by": "kwargs.tenant"})
    with connected(lane_jobs.database) as other, connections.transaction(other):
        late = new_job(TASK, kwargs={"tenant": "a"}, lane="l", is_dispatched=False, priority=5)
        new_jobs.insert(other, [late])
        lane_jobs.do(lane_control.save, "l", {"fair_by": None})
    of(lane_jobs, "b", priority=5)
    assert lane_jobs.dispatch() == [str(late.id)]


def test_many_jobs_with_a_wrong_key_are_corrected_at_once(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1, **FAIR)
    lane_jobs.sql(INSERT, "a", 50)
    lane_jobs.sql("UPDATE pgbeat.unfinished_jobs SET fair_key = ''")
    assert tenants(lane_jobs, lane_jobs.dispatch()) == ["a"]
    assert lane_jobs.sql("SELECT DISTINCT fair_key FROM pgbeat.jobs") == [("tenant=a",)]


def test_a_change_of_the_arguments_changes_the_key(lane_jobs: Lanes) -> None:
    lane_jobs.lane(**FAIR)
    [job] = of(lane_jobs, "a")
    lane_jobs.sql('UPDATE pgbeat.jobs SET kwargs = \'{"tenant": "b"}\' WHERE id = %s', job)
    assert lane_jobs.sql("SELECT fair_key FROM pgbeat.jobs") == [("tenant=b",)]


def test_a_locked_job_is_passed_over(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=2, **FAIR)
    first, second = of(lane_jobs, "a", 2)
    [other] = of(lane_jobs, "b")
    with connected(lane_jobs.database) as own, connections.transaction(own):
        jobs.get(own, first, for_update=True)
        assert sorted(lane_jobs.dispatch()) == sorted([second, other])


def test_the_next_key_gets_the_slot_in_the_transaction_that_frees_it(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1, max_per_key=1, **FAIR)
    first = of(lane_jobs, "a", 3)[0]
    [late] = of(lane_jobs, "b")
    lane_jobs.dispatch()
    with connected(lane_jobs.database) as recording:
        connections.configure(recording, PLANS)
        with connections.transaction(recording):
            ended = endings.end(recording, [first], "skipped", None)
            freed = lifecycle.follow(recording, lane_jobs.publisher, ended)
            assert dispatch_in_transaction(recording, lane_jobs.publisher, freed) == set()
    assert lane_jobs.seated() == {late}


def test_a_rate_and_a_policy_apply_to_a_fair_lane_too(lane_jobs: Lanes) -> None:
    lane_jobs.lane(rate_limit=3, rate_period="1 hour", max_per_key=2, **FAIR)
    of(lane_jobs, "a", 5)
    of(lane_jobs, "b", 1)
    assert sorted(tenants(lane_jobs, lane_jobs.dispatch())) == ["a", "a", "b"]
    lane_jobs.lane("p", policy="tasks", options='{"shop.sync": 3}', max_per_key=2, **FAIR)
    of(lane_jobs, "a", 5, lane="p")
    of(lane_jobs, "b", 1, lane="p")
    assert sorted(tenants(lane_jobs, lane_jobs.dispatch("p"))) == ["a", "a", "b"]
    of(lane_jobs, "c", 1, lane="p")
    lane_jobs.end(*[job for job in lane_jobs.seated("p") if tenants(lane_jobs, [job]) == ["b"]])
    assert tenants(lane_jobs, lane_jobs.dispatch("p")) == ["c"]


def test_the_line_is_shown_in_turns_with_the_reasons(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=9, max_per_key=1, **FAIR)
    mine = of(lane_jobs, "a", 3)
    lane_jobs.dispatch()
    [other] = of(lane_jobs, "b")
    with connections.transaction(lane_jobs.connection) as connection:
        lane = lanes.get(connection, "l", namespace="default")
        line = occupancy.line(connection, lane)
        third = jobs.get(connection, mine[2])
        where = explain.of_job(connection, third, connections.now(connection))
        assert waiting.place(connection, third) == 1
    assert [(each.id, each.reason) for each in line] == [
        (other, None),
        (mine[1], "tenant=a has 1 of 1 slot"),
        (mine[2], "tenant=a has 1 of 1 slot"),
    ]
    assert where.sentence == "waits in lane 'l' at place 2 of tenant=a; tenant=a has 1 of 1 slot"


def test_a_fair_lane_says_which_keys_there_are(lane_jobs: Lanes) -> None:
    for changes, field, code in (
        ({"fair_by": "kwarg.tenant"}, "fair_by", "unknown"),
        ({"fair_by": "tag:"}, "fair_by", "unknown"),
        ({"max_per_key": 1}, "max_per_key", "conflict"),
        ({"fair_by": "task", "max_per_key": -1}, "max_per_key", "out_of_range"),
    ):
        with raises(InvalidJob, (field, code)):
            lane_jobs.do(lane_control.save, "l", changes)


READ = text(
    "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables "
    "WHERE relname = 'unfinished_jobs'"
)


@pytest.mark.parametrize("changes", [{"max_per_key": 1, **FAIR}, {}], ids=["fair", "plain"])
@pytest.mark.parametrize("is_analyzed", [False, True])
def test_a_dispatch_reads_a_few_rows_however_many_wait(
    lane_jobs: Lanes, is_analyzed: bool, changes: dict[str, Any]
) -> None:
    """All 20,000 that wait are of two keys. When the table was analyzed, each job had a slot."""
    if is_analyzed:
        lane_jobs.sql(INSERT, "a", 1_000)
        lane_jobs.sql("UPDATE pgbeat.jobs SET dispatched_at = now()")
        lane_jobs.sql("ANALYZE pgbeat.unfinished_jobs")
        lane_jobs.sql("DELETE FROM pgbeat.jobs")
    lane_jobs.lane(max_running=4, **changes)
    for tenant in ("a", "b"):
        lane_jobs.sql(INSERT, tenant, 10_000)
    for limit, expected in ((2, 2), (9, 1 if changes else 2)):
        of(lane_jobs, "c", 1)
        with connections.transaction(lane_jobs.connection) as connection:
            before = connection.scalar(READ)
            taken = slots.take_next(connection, "default", "l", limit=limit)
            assert taken is not None
            assert len(taken.jobs) == expected
            assert connection.scalar(READ) - before < 60


KEYS = """
    INSERT INTO pgbeat.jobs (id, task, args, kwargs, job_source, created_by, is_system_job, lane,
                             dispatched_at)
    SELECT gen_random_uuid(), 'shop.sync', '[]', jsonb_build_object('tenant', n::text), 'system',
           'user:me', false, 'l', at
      FROM generate_series(1001, 1000 + %s) AS n, (VALUES (now()), (NULL)) AS v (at)
"""


#: A rate that is never used up.
RATE: dict[str, Any] = {"rate_limit": 1000, "rate_period": "1 second"}
TAKE = "SELECT * FROM pgbeat.take_next('default', 'l', 9, ARRAY[%s]::uuid[])"


@pytest.mark.parametrize("limits", ["slots", "rate", "reservation"])
def test_an_end_reads_a_few_keys_however_many_have_all_their_slots(
    lane_jobs: Lanes, limits: str
) -> None:
    """The freed key comes at once; one that waited for the lane's limit, after a few ends."""
    number = 401 if limits == "reservation" else 400
    lane_jobs.lane(max_running=number, max_per_key=1, **FAIR, **(RATE if limits == "rate" else {}))
    lane_jobs.sql(KEYS, 400)
    lane_jobs.sql("VACUUM ANALYZE pgbeat.unfinished_jobs")
    if limits == "reservation":
        reservations.reserve(
            lane_jobs.connection,
            "default",
            "l",
            task=TASK,
            tags=[],
            resources={},
            created_by="user:me",
        )
        assert lane_jobs.dispatch() == []  # it has a slot now
    running = lane_jobs.sql(
        "SELECT id FROM pgbeat.jobs WHERE dispatched_at IS NOT NULL ORDER BY kwargs"
    )
    of(lane_jobs, "1301b")  # has no slot and waits for one of the lane
    turns: list[str] = []
    for (job,) in reversed(running[-5:]):
        lane_jobs.end(job)
        if not turns and limits == "slots":
            pages(lane_jobs.connection, TAKE, job)  # the first time, the functions are read, too
            assert pages(lane_jobs.connection, TAKE, job) < 1000
        with explained(lane_jobs.connection) as statements:
            [taken] = lane_jobs.dispatch(job_ids=[job])
        turns += tenants(lane_jobs, [taken])
        if len(turns) > 1:
            assert sum(plan.pages for plan in statements.plans) < 1000
    assert turns == ["1400", "1399", "1398", "1301b", "1396"]
    # Without a job whose key to look at, all are.
    assert tenants(lane_jobs, lane_jobs.dispatch()) == []
    lane_jobs.sql("UPDATE pgbeat.lanes SET max_running = max_running + 1, turns = '{}'")
    assert lane_jobs.dispatch(job_ids=[]) == []
    assert tenants(lane_jobs, lane_jobs.dispatch()) == ["1397"]


def test_a_key_that_the_rate_holds_back_keeps_its_turn(lane_jobs: Lanes) -> None:
    """The walk went past a hundred full keys, met one with room, and the freed key came after."""
    lane_jobs.lane(max_running=400, max_per_key=1, rate_limit=1, rate_period="1 hour", **FAIR)
    lane_jobs.sql(KEYS, 250)
    lane_jobs.sql(
        "UPDATE pgbeat.jobs SET dispatched_at = now() - interval '1 day' "
        "WHERE dispatched_at IS NOT NULL"
    )
    [(freed,)] = lane_jobs.sql(
        "SELECT id FROM pgbeat.unfinished_jobs WHERE dispatched_at IS NOT NULL "
        "AND kwargs ->> 'tenant' = '1240'"
    )
    of(lane_jobs, "1010b")
    lane_jobs.end(freed)
    turns = "SELECT turns ->> '0' FROM pgbeat.lanes"
    assert tenants(lane_jobs, lane_jobs.dispatch(job_ids=[freed])) == ["1010b"]
    assert lane_jobs.sql(turns) == [("tenant=1100",)]  # not 1240, which waits for the rate
    assert lane_jobs.dispatch(job_ids=[freed]) == []
    of(lane_jobs, "1210b")
    lane_jobs.sql("UPDATE pgbeat.lanes SET rate_limit = 2")
    assert tenants(lane_jobs, lane_jobs.dispatch(job_ids=[freed])) == ["1210b"]
    lane_jobs.sql("UPDATE pgbeat.lanes SET rate_limit = 3")
    assert tenants(lane_jobs, lane_jobs.dispatch(job_ids=[freed])) == ["1240"]


@pytest.mark.parametrize("rate", [{}, RATE], ids=["slots", "rate"])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_ends_when_limits_hold_and_every_key_has_its_turn(
    lane_jobs: Lanes, seed: int, rate: dict[str, Any]
) -> None:
    """Between two turns of a key that waits, each other key gets at most one."""
    chance = random.Random(seed)  # noqa: S311
    per_key = chance.choice([1, 2, 3])
    lane_jobs.lane(max_running=chance.randint(2, 5), max_per_key=per_key, **FAIR, **rate)
    limit = lane_jobs.sql("SELECT max_running FROM pgbeat.lanes")[0][0]
    tenant_of: dict[str, str] = {}
    waits: dict[str, list[str]] = {}
    passed: dict[str, Counter[str]] = {}  # what others got while a key waited, having room
    running: list[str] = []
    for _ in range(40):
        for tenant in chance.choices("abcdefgh", weights=[40, 5, 5, 1, 1, 1, 1, 1], k=3):
            [job] = of(lane_jobs, tenant)
            tenant_of[job] = tenant
            waits.setdefault(tenant, []).append(job)
            passed.setdefault(tenant, Counter())
        for job in lane_jobs.dispatch():
            own = tenant_of[job]
            assert waits[own].pop(0) == job
            running.append(job)
            passed[own] = Counter()
            for tenant, line in waits.items():
                has_room = sum(tenant_of[each] == tenant for each in running) < per_key
                if tenant != own and line and has_room:
                    passed[tenant][own] += 1
                    assert passed[tenant][own] <= 1, (tenant, own)
                elif not line or not has_room:
                    passed[tenant] = Counter()
        assert len(running) <= limit
        assert max(Counter(tenant_of[job] for job in running).values()) <= per_key
        gone = chance.sample(running, chance.randint(1, len(running)))
        lane_jobs.end(*gone)
        running = [job for job in running if job not in gone]
