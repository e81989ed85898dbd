"""Sync: the rows made by code are just the code's entries, and nobody else's are touched."""

from collections import OrderedDict
from datetime import timedelta
from decimal import Decimal
from enum import IntEnum, StrEnum
from functools import partial
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Connection, event

from pgbeat.database import connections
from pgbeat.schedules import control, entries, sync, writes
from pgbeat.schedules import model as schedules
from pgbeat.schedules.sync import CodeEntry, SyncChanges, faithful
from tests.support.command_line import Sql
from tests.support.rows import make_schedule, unit_on
from tests.support.schedulers import Beat

apply = partial(sync.apply, app="tests")

HOUR = timedelta(hours=1)


def entry(name: str = "s", **changes: Any) -> CodeEntry:
    """An entry of every hour, unless told otherwise."""
    values: dict[str, Any] = {
        "task": "tests.add",
        "cron": None,
        "every": HOUR,
        "timezone": None,
        "args": [],
        "kwargs": {},
        "options": {},
        **changes,
    }
    return CodeEntry(name, **values)


def everything(connection: Connection, name: str) -> dict[str, Any]:
    """All of a row, its version too: nobody wrote to it if that is the same."""
    return schedules.get(connection, name)._asdict()


def test_what_the_code_has_is_added(connection: Connection) -> None:
    entries = [
        entry("a", args=[1], kwargs={"x": {"y": [None, "ü"]}}, options={"queue": "slow"}),
        entry("b", every=None, cron="0 2 * * *", timezone="Europe/Oslo"),
        entry("c", every=None, args=None),
    ]
    assert apply(connection, entries, max_retries=2) == SyncChanges(added=["a", "b", "c"])
    a, b, c = schedules.listing(connection)
    assert (a.source, a.max_retries, a.every, a.args) == ("code", 2, HOUR, [1])
    assert (a.kwargs, a.options) == ({"x": {"y": [None, "ü"]}}, {"queue": "slow"})
    assert (b.cron, b.timezone, b.every) == ("0 2 * * *", "Europe/Oslo", None)
    assert (c.cron, c.every, c.args, c.source) == (None, None, None, "code")


def test_what_the_code_has_is_added_out_of_service_if_it_says_so(
    connection: Connection, app: Celery
) -> None:
    """And is left as people switch it afterwards."""
    hourly = {"task": "tests.add", "schedule": 3600.0}
    app.conf.beat_schedule = {
        "off": hourly | {"enabled": False},
        "held": hourly | {"paused": True},
        "on": hourly,
    }
    added = entries.from_app(app, {})
    apply(connection, added)
    rows = {row.name: row for row in schedules.listing(connection)}
    assert {name: row.state for name, row in rows.items()} == {
        "off": "disabled",
        "held": "paused",
        "on": "active",
    }
    assert rows["off"].disabled_reason == sync.BY_CODE
    control.enable(unit_on(connection), "off")
    control.resume(unit_on(connection), "held")
    assert apply(connection, added) == SyncChanges()
    assert {row.state for row in schedules.listing(connection)} == {"active"}


def test_the_same_again_writes_nothing(connection: Connection) -> None:
    entries = [
        entry("a", kwargs={"x": 1e22, "y": 0.1, "z": -0.0}),
        entry("b", cron="@daily", every=None),
    ]
    apply(connection, entries)
    before = [everything(connection, name) for name in ("a", "b")]
    assert apply(connection, entries, max_retries=9) == SyncChanges()
    assert [everything(connection, name) for name in ("a", "b")] == before


def test_what_the_code_changed_is_changed(connection: Connection, sql: Sql) -> None:
    changes: dict[str, dict[str, Any]] = {
        "every": {"every": timedelta(hours=2)},
        "cron": {"every": None, "cron": "0 2 * * *"},
        "timezone": {"timezone": "Europe/Oslo"},
        "no every": {"every": None},
        "task": {"task": "tests.note"},
        "args": {"args": [2]},
        "no args": {"args": None},
        "kwargs": {"kwargs": {"x": 1}},
        "options": {"options": {"priority": 1}},
    }
    apply(connection, [entry(name) for name in (*changes, "other")])
    sql("UPDATE pgbeat.schedules SET next_run = '2030-01-01'")
    other = everything(connection, "other")
    changed = [entry(name, **values) for name, values in changes.items()]
    assert apply(connection, [*changed, entry("other")]) == SyncChanges(changed=sorted(changes))
    for name, values in changes.items():
        row = everything(connection, name)
        assert values.items() <= row.items()
        assert (row["next_run"] is None) == (not {"every", "timezone"}.isdisjoint(values)), name
    assert everything(connection, "other") == other


def test_a_persons_timetable_on_a_row_of_the_code_is_set_back(
    connection: Connection, sql: Sql
) -> None:
    apply(connection, [entry()])
    sql("UPDATE pgbeat.schedules SET every = NULL, rrule = 'FREQ=DAILY'")
    assert apply(connection, [entry()]) == SyncChanges(changed=["s"])
    assert (schedules.get(connection, "s").every, schedules.get(connection, "s").rrule) == (
        HOUR,
        None,
    )


def test_how_jobs_are_made_is_a_persons(connection: Connection) -> None:
    """No entry says it, and it stays through what the code changes."""
    apply(connection, [entry()])
    with connections.transaction(connection):
        writes.edit(connection, "s", job_policy={"lane": "gpu", "max_attempts": 1})
    assert apply(connection, [entry()]) == SyncChanges()
    assert apply(connection, [entry(args=[7])]) == SyncChanges(changed=["s"])
    row = schedules.get(connection, "s")
    assert (row.args, row.job_policy) == ([7], {"lane": "gpu", "max_attempts": 1})


def test_what_the_code_dropped_is_removed(connection: Connection) -> None:
    apply(connection, [entry("a"), entry("b"), entry("c")])
    assert apply(connection, [entry("b")]) == SyncChanges(removed=["a", "c"])
    assert [row.name for row in schedules.listing(connection)] == ["b"]
    assert apply(connection, []) == SyncChanges(removed=["b"])


def test_another_apps_rows_are_not_touched(connection: Connection) -> None:
    apply(connection, [entry("theirs"), entry("both")], app="blog")
    before = [everything(connection, name) for name in ("theirs", "both")]
    changed = entry("both", every=timedelta(1))
    assert apply(connection, [changed, entry("ours")], app="shop") == SyncChanges(
        added=["ours"], foreign={"both": "blog"}
    )
    assert apply(connection, [], app="shop") == SyncChanges(removed=["ours"])
    assert [everything(connection, name) for name in ("theirs", "both")] == before
    assert sync.other_apps(connection, "default", app="shop") == {"blog": 2}
    assert sync.other_apps(connection, "default", app="blog") == {}
    assert sync.other_apps(connection, "other", app="shop") == {}


def test_rows_of_an_unknown_app_are_adopted_by_name_and_never_removed(
    connection: Connection,
) -> None:
    """Such as rows made before the app was recorded, and those of an app without a name."""
    apply(connection, [entry("a"), entry("b")], app=None)
    assert apply(connection, [entry("a")], app=None) == SyncChanges(orphaned=["b"])
    assert apply(connection, [entry("a")], app="shop") == SyncChanges(orphaned=["b"])
    assert [row.app for row in schedules.listing(connection)] == ["shop", None]
    assert apply(connection, [], app="shop") == SyncChanges(removed=["a"], orphaned=["b"])


def test_a_beat_keeps_another_apps_schedules_and_warns(
    beat: Beat, app: Celery, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    app.conf.beat_schedule = {"ours": {"task": "tests.add", "schedule": 3600.0}}
    first = beat()
    first.run_due()
    first.close()
    other = Celery("blog", broker=app.conf.broker_url, set_as_current=False)
    other.conf.update(
        result_expires=None, beat_schedule={"theirs": {"task": "blog.publish", "schedule": 3600.0}}
    )
    caplog.clear()
    with other:
        beat(app=other).run_due()
    assert sql("SELECT name, app FROM pgbeat.schedules ORDER BY 1") == [
        ("ours", "tests"),
        ("theirs", "blog"),
    ]
    warned = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert any(
        line.startswith("Other apps use the namespace 'default' too: 'tests' (1 schedule)")
        and "pgbeat_namespace" in line
        for line in warned
    ), warned


def test_a_beat_that_takes_over_warns_of_apps_that_came_meanwhile(
    beat: Beat, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    """Each beat warns of an app once: at its start, or when it takes over."""

    def of_others() -> int:
        return sum("Other apps use the namespace" in each.getMessage() for each in caplog.records)

    leader, standby = beat(), beat()
    leader.run_due()
    make_schedule(sql, "theirs", source="code", app="blog", task="blog.publish", every="1 h")
    assert of_others() == 0
    leader.close()
    standby.run_due()
    assert of_others() == 1
    next_one = beat()  # warns at its start
    standby.close()
    next_one.run_due()
    assert of_others() == 2


def test_rows_made_elsewhere_are_not_touched(connection: Connection, sql: Sql) -> None:
    sources = ["api", "cli", "file", "sql"]
    names = [*sources, *(f"{source} too" for source in sources)]
    for name in names:
        make_schedule(sql, name, source=name.split()[0], task="t")
    before = [everything(connection, name) for name in names]
    assert apply(connection, [*map(entry, sources), entry("ours")]) == SyncChanges(
        added=["ours"], taken=sources
    )
    assert apply(connection, [entry(name, every=timedelta(1)) for name in sources]) == SyncChanges(
        removed=["ours"], taken=sources
    )
    assert [everything(connection, name) for name in names] == before


def test_switches_and_the_run_state_survive_a_change(connection: Connection, sql: Sql) -> None:
    apply(connection, [entry()])
    sql(
        "UPDATE pgbeat.schedules SET paused_at = '2025-01-01Z', retry_count = 2, "
        "last_run = '2025-01-02Z', last_success = '2025-01-03Z', last_failure = '2025-01-04Z', "
        "last_error = 'oops', cursor = '7', max_retries = 9, owner = 'ops', "
        "condition_sql = 'SELECT true', enabled = false, disabled_reason = 'too loud'"
    )
    before = everything(connection, "s")
    assert apply(connection, [entry(kwargs={"x": 1})]) == SyncChanges(changed=["s"])
    after = everything(connection, "s")
    assert after.pop("kwargs") == {"x": 1}
    for written in ("kwargs", "version", "updated_at"):
        before.pop(written)
        after.pop(written, None)
    assert after == before


def test_a_beat_that_comes_later_leaves_a_persons_pause(
    beat: Beat, app: Celery, connection: Connection
) -> None:
    app.conf.beat_schedule = {"s": {"task": "tests.add", "schedule": 30.0}}
    first = beat()
    first.run_due()
    first.close()
    paused = control.pause(unit_on(connection), "s").after.paused_at
    app.conf.beat_schedule = {"s": {"task": "tests.add", "schedule": 60.0}}
    beat().run_due()
    row = schedules.get(connection, "s")
    assert (row.paused_at, row.every) == (paused, timedelta(seconds=60))


def test_the_code_may_name_things_as_it_likes(connection: Connection) -> None:
    names = ["  spaces  ", "fetch('http://example.com/')", "two\nlines", "x" * 200, "ünïcode"]
    entries = [entry(name) for name in names]
    assert apply(connection, entries) == SyncChanges(added=names)
    assert apply(connection, entries) == SyncChanges()
    assert apply(connection, [entry(name, args=[1]) for name in names]) == SyncChanges(
        changed=names
    )
    assert apply(connection, []) == SyncChanges(removed=names)


def test_a_thousand_entries_are_a_few_statements(connection: Connection) -> None:
    apply(connection, [entry(f"s{n}") for n in range(1000)])
    sent: list[str] = []
    event.listen(connection, "before_cursor_execute", lambda *args: sent.append(args[2]))
    changed = [entry(f"s{n}", kwargs={"x": n}) for n in range(500, 1500)]
    changes = apply(connection, changed)
    assert [len(names) for names in (changes.added, changes.changed, changes.removed)] == [500] * 3
    assert len(sent) == 5
    assert {row.name: row.kwargs for row in schedules.listing(connection)} == {
        f"s{n}": {"x": n} for n in range(500, 1500)
    }


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


def test_what_json_gives_back_is_faithful(connection: Connection) -> None:
    pairs: list[tuple[Any, Any]] = [
        ([1, 1.5, "a", None, True], [1, 1.5, "a", None, True]),
        ((1, (2, [3, (4,)])), [1, [2, [3, [4]]]]),
        ({"a": {"b": (1,)}}, {"a": {"b": [1]}}),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        ([Colour.RED, Size.BIG], ["red", 3]),
        ("ünïcode 🎉", "ünïcode 🎉"),
        (10**40, 10**40),
        ("a text, \\u0000, and no NUL", "a text, \\u0000, and no NUL"),
        ({}, {}),
    ]
    given = [faithful(value) for value, _ in pairs]
    expected = [value for _, value in pairs]
    assert given == expected
    apply(connection, [entry(args=given)])
    assert schedules.get(connection, "s").args == expected


@pytest.mark.parametrize(
    "value",
    [
        {1: "a"},
        {(1, 2): 3},
        {"a": {1: 2}},
        {1, 2},
        Decimal("1.5"),
        timedelta(1),
        object(),
        float("nan"),
        float("inf"),
        "a\0b",
        "half a pair: \ud83c",
        [10**5000],
    ],
)
def test_what_json_or_jsonb_would_change_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        faithful(value)


def test_what_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="Circular"):
        faithful(endless)
