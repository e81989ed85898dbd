"""Plans of files: what they find, and the rows that they make."""

import random
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database import connections
from pgbeat.schedules import control, writes
from pgbeat.schedules import model as schedules
from pgbeat.schedules.files import File, InvalidFile, exports, plans, read, rows
from pgbeat.schedules.files.fields import FIELDS, FieldChange, plain
from tests.support.command_line import Sql
from tests.support.rows import make_lane, make_schedule, make_template, unit_on
from tests.unit.schedules.test_files import EVERYTHING


def loaded(text: str) -> File:
    return read(text, "schedules.yaml")


# -- the plan --------------------------------------------------------------------------------------


def planned(connection: Connection, text: str, **ways: bool) -> plans.Plan:
    file = loaded(text)
    return plans.make(connection, file, file.namespace or "default", **ways)


def synced(connection: Connection, text: str, **ways: bool) -> plans.Plan:
    """Does what the plan says; the plan that was done."""
    file = loaded(text)
    with connections.transaction(connection):
        plan = plans.make(connection, file, file.namespace or "default", **ways)
        file.require_valid(plan.mistakes)
        rows.lock(connection, plan)
        assert plans.make(connection, file, file.namespace or "default", **ways) == plan
        rows.apply(unit_of(connection, plan), file, plan)
    return plan


def unit_of(connection: Connection, plan: plans.Plan) -> UnitOfWork:
    unit = unit_on(connection)
    unit.namespace = plan.namespace
    return unit


def everything(
    connection: Connection, name: str = "s", namespace: str = "default"
) -> dict[str, Any]:
    """All of a row, its version too: nobody wrote to it if that is the same."""
    return schedules.get(connection, name, namespace=namespace)._asdict()


def add(connection: Connection, name: str, source: str = "sql", **values: Any) -> None:
    with connections.transaction(connection):
        writes.add(connection, name, source=source, **{"task": "t", **values})


def edit(connection: Connection, **values: Any) -> None:
    with connections.transaction(connection):
        writes.edit(connection, "s", **values)


def changes(plan: plans.Plan, name: str = "s") -> dict[str, tuple[Any, Any]]:
    return {change.field: (change.old, change.new) for change in plan.changed.get(name, ())}


def drift(plan: plans.Plan, name: str = "s") -> dict[str, Any]:
    """Fields edited by hand, with what the last sync wrote."""
    return {change.field: change.was for change in plan.changed[name] if change.by_hand}


ONE = "schedules: {s: {task: tests.add, every: 1 hour, owner: ops}}"


def test_what_the_file_has_is_added(connection: Connection, sql: Sql) -> None:
    make_lane(sql, "gpu", None)
    plan = synced(connection, EVERYTHING.replace("    calendar: holidays\n", ""))
    assert list(plan.added) == ["s"]
    row = everything(connection)
    wanted = loaded(EVERYTHING).definitions["s"].values | {"calendar": None}
    assert {name: row[name] for name in FIELDS if name != "paused"} == {
        name: value for name, value in wanted.items() if name != "paused"
    }
    assert row["source"] == "file"
    assert row["paused_at"] is not None
    assert row["disabled_reason"] == "disabled by its file"
    assert plain(wanted) == plan.added["s"]
    assert sql("SELECT file_definition FROM pgbeat.schedules") == [(plain(wanted),)]


def test_the_same_again_writes_nothing(connection: Connection) -> None:
    text = "schedules: {s: {task: t, every: 5, kwargs: {a: 1e22, b: 0.1, c: -0.0, d: 1e-7}}}"
    synced(connection, text)
    before = everything(connection)
    plan = synced(connection, text)
    assert not plan
    assert (plan.unchanged, plan.noted) == (1, [])
    assert everything(connection) == before


def test_what_the_file_changed_is_changed(connection: Connection, sql: Sql) -> None:
    synced(connection, ONE)
    sql(
        "UPDATE pgbeat.schedules SET next_run = '2030-01-01Z', last_run = '2025-01-02Z', "
        "last_success = '2025-01-03Z', retry_count = 2, last_error = 'oops', cursor = '7', "
        "run_count = 3"
    )
    before = everything(connection)
    plan = synced(connection, ONE.replace("ops", "me").replace("every", "kwargs: {x: 1}, every"))
    assert changes(plan) == {"kwargs": ({}, {"x": 1}), "owner": ("ops", "me")}
    assert drift(plan) == {}
    after = everything(connection)
    assert (after["kwargs"], after["owner"]) == ({"x": 1}, "me")
    written = {"kwargs", "owner", "version", "updated_at"}
    assert {k: v for k, v in after.items() if k not in written} == {
        k: v for k, v in before.items() if k not in written
    }


@pytest.mark.parametrize("when", ["every: 2 hours", "cron: '@daily'", "timezone: UTC, every: 1h"])
def test_a_new_timetable_counts_from_now(connection: Connection, sql: Sql, when: str) -> None:
    synced(connection, ONE)
    sql("UPDATE pgbeat.schedules SET next_run = '2030-01-01Z'")
    synced(connection, ONE.replace("every: 1 hour", when))
    assert everything(connection)["next_run"] is None


def test_what_is_left_out_is_as_it_is_by_default(connection: Connection, sql: Sql) -> None:
    make_lane(sql, "gpu", None)
    synced(connection, EVERYTHING.replace("    calendar: holidays\n", ""))
    plan = synced(connection, "schedules: {s: {task: t, every: 1h 30m}}")
    assert changes(plan)["queue"] == ("slow", None)
    assert changes(plan)["retry_cap"] == ("2 days", "1 hour")
    row = everything(connection)
    assert all(
        row[n] == f.default for n, f in FIELDS.items() if n not in ("task", "every", "paused")
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [("{x: 1}", "{x: true}"), ("{x: 1}", "{x: 1.0}"), ("{x: [0]}", "{x: [false]}")],
)
def test_one_and_true_are_not_the_same(connection: Connection, one: str, other: str) -> None:
    text = "schedules: {s: {task: t, every: 5, kwargs: "
    synced(connection, f"{text}{one}}}}}")
    assert synced(connection, f"{text}{other}}}}}").changed
    assert not synced(connection, f"{text}{other}}}}}")


def test_what_is_not_in_the_file_is_kept_unless_it_is_pruned(connection: Connection) -> None:
    synced(connection, "schedules: {a: {task: t, every: 5}, b: {task: t, every: 5}}")
    add(connection, "theirs", every=timedelta(1))
    text = "schedules: {b: {task: t, every: 5}}"
    plan = synced(connection, text)
    assert (bool(plan), plan.kept, plan.removed) == (False, ["a"], [])
    plan = synced(connection, text, prune=True)
    assert (bool(plan), plan.kept, plan.removed) == (True, [], ["a"])
    assert [row.name for row in schedules.listing(connection)] == ["b", "theirs"]
    assert synced(connection, "schedules: {}", prune=True).removed == ["b"]


def test_what_was_edited_by_hand_is_drift_and_set_back(connection: Connection) -> None:
    synced(connection, ONE)
    edit(connection, owner="me", queue="slow")
    plan = planned(connection, ONE)
    assert changes(plan) == {"owner": ("me", "ops"), "queue": ("slow", None)}
    assert drift(plan) == {"owner": "ops", "queue": None}
    assert plan.drifted == ["s"]
    synced(connection, ONE)
    assert (everything(connection)["owner"], everything(connection)["queue"]) == ("ops", None)
    assert not planned(connection, ONE)


def test_drift_and_a_change_of_the_file_at_once(connection: Connection) -> None:
    synced(connection, ONE)
    edit(connection, owner="me")
    plan = planned(connection, ONE.replace("ops", "you"))
    assert plan.changed["s"] == [FieldChange("owner", "me", "you", True, "ops")]


def test_an_edit_that_the_file_follows_is_no_drift(connection: Connection, sql: Sql) -> None:
    synced(connection, ONE)
    edit(connection, owner="me")
    version = everything(connection)["updated_at"]
    mine = ONE.replace("ops", "me")
    plan = synced(connection, mine)
    assert (bool(plan), plan.noted) == (False, ["s"])
    row = everything(connection)
    assert sql("SELECT file_definition ->> 'owner' FROM pgbeat.schedules") == [("me",)]
    assert row["updated_at"] == version
    edit(connection, owner="ops")
    assert drift(planned(connection, mine)) == {"owner": "me"}


def test_a_row_whose_file_is_not_known_has_no_drift(connection: Connection, sql: Sql) -> None:
    make_schedule(sql, source="file", task="t", every="5 s")
    plan = synced(connection, ONE)
    assert changes(plan).keys() == {"task", "every", "owner"}
    assert not plan.drifted


@pytest.mark.parametrize("source", ["sql", "cli", "api", "code"])
def test_names_made_elsewhere_are_taken_over_only_if_told(
    connection: Connection, sql: Sql, source: str
) -> None:
    make_schedule(sql, source=source, task="theirs", last_run="2025-01-01Z")
    make_schedule(sql, "same", source=source, task="t")
    text = ONE.replace("}}", "}, same: {task: t, every: 1 h}, new: {task: t, every: 1 h}}")
    before = everything(connection)
    plan = synced(connection, text)
    assert plan.taken == {"s": source, "same": source}
    assert (list(plan.added), plan.changed, plan.adopted) == (["new"], {}, {})
    assert everything(connection) == before
    plan = synced(connection, text, adopt=True)
    assert plan.adopted == {"s": source, "same": source}
    assert changes(plan) == {"task": ("theirs", "tests.add"), "owner": (None, "ops")}
    assert (changes(plan, "same"), plan.unchanged, plan.drifted) == ({}, 1, [])
    after = everything(connection)
    assert (after["source"], after["task"], after["last_run"]) == (
        "file",
        "tests.add",
        before["last_run"],
    )
    assert everything(connection, "same")["source"] == "file"
    assert not synced(connection, text)


def test_rows_of_the_code_that_stay_there_are_taken_over_whole(
    connection: Connection, sql: Sql
) -> None:
    make_schedule(sql, source="code", task="t", args=None, every=None)
    plan = synced(connection, ONE, adopt=True)
    assert changes(plan)["args"] == (None, [])
    assert everything(connection)["args"] == []


def test_namespaces_don_t_see_each_other(connection: Connection) -> None:
    synced(connection, ONE)
    mine = "namespace: shop\n" + ONE.replace("ops", "me")
    assert list(synced(connection, mine).added) == ["s"]
    assert everything(connection)["owner"] == "ops"
    assert everything(connection, namespace="shop")["owner"] == "me"
    assert synced(connection, "namespace: shop\nschedules: {}", prune=True).removed == ["s"]
    assert not synced(connection, ONE, prune=True)


# -- switches --------------------------------------------------------------------------------------

OFF = ONE.replace("owner", "enabled: false, owner")
PAUSED = ONE.replace("owner", "paused: true, owner")


def test_a_pause_made_by_hand_is_kept(connection: Connection) -> None:
    synced(connection, ONE)
    paused_at = control.pause(unit_on(connection), "s").after.paused_at
    assert not synced(connection, ONE)
    synced(connection, ONE.replace("ops", "me"))
    assert everything(connection)["paused_at"] == paused_at


@pytest.mark.parametrize("text", [ONE, ONE.replace("owner", "enabled: true, owner")])
def test_what_failures_disabled_is_kept(connection: Connection, text: str) -> None:
    synced(connection, ONE)
    control.disable(unit_on(connection), "s", "failed 5 times in a row")
    assert not synced(connection, text)
    synced(connection, text.replace("ops", "me"))
    row = everything(connection)
    assert (row["enabled"], row["disabled_reason"]) == (False, "failed 5 times in a row")


def test_what_the_file_disables_is_off_until_the_file_says_otherwise(
    connection: Connection, sql: Sql
) -> None:
    synced(connection, ONE)
    sql("UPDATE pgbeat.schedules SET next_run = '2030-01-01Z', retry_count = 2")
    assert changes(synced(connection, OFF)) == {"enabled": (True, False)}
    row = everything(connection)
    assert (row["enabled"], row["disabled_reason"]) == (False, "disabled by its file")
    assert not synced(connection, OFF)
    control.enable(unit_on(connection), "s")
    plan = synced(connection, OFF)
    assert (changes(plan), drift(plan)) == ({"enabled": (True, False)}, {"enabled": False})
    assert not everything(connection)["enabled"]
    assert changes(synced(connection, ONE)) == {"enabled": (False, True)}
    row = everything(connection)
    assert (row["enabled"], row["disabled_reason"], row["next_run"]) == (True, None, None)


def test_what_somebody_disabled_for_a_reason_is_not_enabled_by_the_file(
    connection: Connection,
) -> None:
    synced(connection, OFF)
    control.disable(unit_on(connection), "s", "too loud")
    assert not synced(connection, ONE)
    assert everything(connection)["disabled_reason"] == "too loud"


def test_what_failed_and_then_is_disabled_by_the_file_is_not_probed(
    connection: Connection, sql: Sql
) -> None:
    synced(connection, ONE)
    sql(
        "UPDATE pgbeat.schedules SET enabled = false, disabled_reason = 'failed', "
        "probe_at = '2030-01-01Z'"
    )
    assert not synced(connection, OFF)
    row = everything(connection)
    assert (row["disabled_reason"], row["probe_at"]) == ("disabled by its file", None)
    assert changes(synced(connection, ONE)) == {"enabled": (False, True)}


def test_what_the_file_pauses_is_held_until_the_file_says_otherwise(connection: Connection) -> None:
    synced(connection, PAUSED)
    assert everything(connection)["paused_at"] is not None
    control.resume(unit_on(connection), "s")
    assert drift(synced(connection, PAUSED)) == {"paused": True}
    paused_at = everything(connection)["paused_at"]
    synced(connection, PAUSED.replace("ops", "me"))
    assert everything(connection)["paused_at"] == paused_at
    assert changes(synced(connection, ONE.replace("ops", "me"))) == {"paused": (True, False)}
    assert everything(connection)["paused_at"] is None


# -- names -----------------------------------------------------------------------------------------


def refused(connection: Connection, text: str, **ways: bool) -> list[str]:
    with pytest.raises(InvalidFile) as raised:
        synced(connection, text, **ways)
    found = raised.value.mistakes
    return [f"{line}:{column}: {said.partition(': there')[0]}" for line, column, said in found]


def test_after_names_what_is_there(connection: Connection) -> None:
    add(connection, "theirs", every=timedelta(1))
    text = "schedules:\n  a: {task: t, after: theirs}\n  b: {task: t, after: their}\n"
    text += "  c: {task: t, after: zzz}\n"
    assert refused(connection, text) == ["3:23: b: after", "4:23: c: after"]
    synced(connection, text.replace("their}", "a}").replace("zzz", "b"))
    assert refused(connection, "schedules: {b: {task: t, after: a}}", prune=True) == [
        "1:33: b: after"
    ]


def test_circles_through_rows_made_elsewhere(connection: Connection) -> None:
    synced(connection, "schedules: {a: {task: t, every: 5}}")
    add(connection, "theirs", after="a")
    assert refused(connection, "schedules: {a: {task: t, after: theirs}}") == [
        "1:33: a: after goes in a circle: a after theirs after a"
    ]


def test_a_schedule_may_come_after_several(connection: Connection) -> None:
    text = """
schedules:
  s: {task: t, after: [b, a, b], after_match: any}
  a: {task: t, after: [b]}
  b: {task: t, every: 5, fresh_within: 2 days}
"""
    assert synced(connection, text).added
    assert not synced(connection, text)
    rows = {row.name: row for row in schedules.listing(connection)}
    assert (rows["s"].after, rows["s"].after_match, rows["a"].after) == ("b\na", "any", "b")
    assert rows["b"].fresh_within == timedelta(days=2)
    document = exports.document(schedules.listing(connection))
    assert document["schedules"]["s"]["after"] == ["b", "a"]
    turned = text.replace("every: 5", "after: [a, s]").replace("after: [b]", "every: 5")
    assert synced(connection, turned.replace("[b, a, b]", "a")).changed.keys() == {"s", "a", "b"}
    assert refused(connection, turned.replace("[b, a, b]", "[a, b]")) == [
        "3:23: s: after goes in a circle: s after b after s"
    ]
    assert refused(connection, text.replace("[b, a, b]", "[b, zzz]")) == ["3:23: s: after"]


def test_who_comes_after_whom_may_be_turned_round(connection: Connection) -> None:
    def chain(names: list[str]) -> str:
        pairs = zip(names, [*names[1:], ""], strict=True)
        return "schedules:\n" + "".join(
            f"  {name}: {{task: t, {f'after: {before}' if before else 'every: 5'}}}\n"
            for name, before in pairs
        )

    names = [f"s{n}" for n in range(20)]
    chance = random.Random(4)  # noqa: S311
    for _ in range(5):
        synced(connection, chain(names))
        assert not planned(connection, chain(names))
        chance.shuffle(names)
        names = [*names[: chance.randrange(15, 20)], f"n{chance.random()}"]


def test_calendars_come_with_the_schedules(connection: Connection, sql: Sql) -> None:
    text = """\
calendars: {office: {weekdays: [sat, sun]}}
schedules: {s: {task: t, every: 5, calendar: office}, u: {task: t, every: 5, calendar: ofice}}
"""
    assert refused(connection, text) == ["2:88: u: calendar"]
    text = text.replace("ofice", "office")
    assert list(synced(connection, text).sections["calendars"].added) == ["office"]
    assert sql("SELECT name, definition FROM pgbeat.calendars") == [
        ("office", {"weekdays": ["sat", "sun"]})
    ]
    assert not synced(connection, text)
    plan = synced(connection, text.replace("sat, ", ""), prune=True)
    assert plan.sections["calendars"].changed == {
        "office": [FieldChange("weekdays", ["sat", "sun"], ["sun"], was=["sat", "sun"])]
    }
    assert not synced(connection, "schedules: {s: {task: t, every: 5, calendar: office}}")


def test_what_only_the_database_refuses_is_told_by_its_line(
    connection: Connection, sql: Sql
) -> None:
    sql("ALTER TABLE pgbeat.schedules ADD CHECK (owner <> 'nobody')")
    sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF NEW.owner = 'me' THEN RAISE EXCEPTION 'schedule \"%\": not you', NEW.name USING "
        "ERRCODE = 'check_violation', DATATYPE = NEW.name; END IF; RETURN NEW; END $$"
    )
    sql(
        "CREATE TRIGGER refuse BEFORE INSERT ON pgbeat.schedules FOR EACH ROW "
        "EXECUTE FUNCTION refuse()"
    )
    text = "schedules:\n  a: {task: t, every: 5}\n  s: {task: t, every: 5, owner: OWNER}\n"
    assert refused(connection, text.replace("OWNER", "me")) == ["3:3: s: not you"]
    assert refused(connection, text.replace("OWNER", "nobody"))[0].startswith("1:1: new row for")
    assert schedules.listing(connection) == []


# -- in bulk ---------------------------------------------------------------------------------------


def test_a_thousand_schedules_are_a_few_statements(connection: Connection) -> None:
    from sqlalchemy import event

    def text(owner: str, numbers: range) -> str:
        return "schedules:\n" + "".join(
            f"  s{n}: {{task: t, every: 5, owner: {owner}{n % 3}}}\n" for n in numbers
        )

    synced(connection, text("a", range(1000)))
    sent: list[str] = []
    event.listen(connection, "before_cursor_execute", lambda *args: sent.append(args[2]))
    plan = synced(connection, text("b", range(500, 1500)), prune=True)
    assert [len(n) for n in (plan.added, plan.changed, plan.removed)] == [500] * 3
    # BEGIN, plan, three locks, plan, three writes between two reads for the audit, COMMIT
    assert len(sent) == 12
    assert {row.name for row in schedules.listing(connection)} == {
        f"s{n}" for n in range(500, 1500)
    }


# -- how jobs are made -----------------------------------------------------------------------------


@pytest.fixture
def stock(sql: Sql) -> None:
    """A lane and two templates that schedules can name."""
    make_lane(sql, "gpu", None)
    make_template(sql, "x", task="t.x")
    make_template(sql, "y", task="t.y")


@pytest.mark.usefixtures("stock")
def test_a_policy_is_the_same_however_it_is_written(connection: Connection, sql: Sql) -> None:
    text = "schedules: {s: {task: t, every: 5, job_policy: {lane: gpu, retry_base: 1 min}}}"
    synced(connection, text)
    assert sql("SELECT job_policy FROM pgbeat.schedules") == [({"lane": "gpu", "retry_base": 60},)]
    for other in ("60", "60.0", "'60 seconds'", "1 minute", "60, tags: null"):
        assert not planned(connection, text.replace("1 min", other)), other
    sql("""UPDATE pgbeat.schedules SET job_policy = '{"retry_base": "1 minute", "lane": "gpu"}'""")
    assert not planned(connection, text)
    plan = planned(connection, text.replace("1 min", "90").replace("lane: gpu", "priority: 0"))
    assert changes(plan) == {
        "job_policy": (
            {"lane": "gpu", "retry_base": "1 minute"},
            {"priority": 0, "retry_base": "1 minute 30 seconds"},
        )
    }
    assert drift(plan) == {}


@pytest.mark.usefixtures("stock")
def test_a_policy_edited_by_hand_is_drift(connection: Connection) -> None:
    text = ONE.replace("owner: ops", "job_policy: {lane: gpu}")
    synced(connection, text)
    edit(connection, job_policy={"lane": "gpu", "max_attempts": 9})
    plan = synced(connection, text)
    assert drift(plan) == {"job_policy": {"lane": "gpu"}}
    assert everything(connection)["job_policy"] == {"lane": "gpu"}
    # One that makes no sense, written past the checks, is set back too.
    connection.exec_driver_sql(
        """UPDATE pgbeat.schedules SET job_policy = '{"priority": "high"}'"""
    )
    assert changes(synced(connection, text)) == {
        "job_policy": ({"priority": "high"}, {"lane": "gpu"})
    }


@pytest.mark.usefixtures("stock")
def test_a_templates_task_is_no_drift(connection: Connection) -> None:
    """The database fills it in."""
    text = "schedules: {s: {every: 1 hour, job_policy: {template: x}}}"
    synced(connection, text)
    before = everything(connection)
    assert before["task"] == "t.x"
    assert not synced(connection, text)
    assert everything(connection) == before
    plan = synced(connection, text.replace("template: x", "template: y"))
    assert changes(plan) == {"job_policy": ({"template": "x"}, {"template": "y"})}
    assert everything(connection)["task"] == "t.y"


@pytest.mark.usefixtures("stock")
def test_a_task_gives_way_to_a_templates(connection: Connection) -> None:
    both = "schedules: {s: {task: own, every: 1 hour, job_policy: {template: x}}}"
    synced(connection, both)
    assert everything(connection)["task"] == "own"
    plan = synced(connection, both.replace("task: own, ", ""))
    assert changes(plan) == {"task": ("own", None)}
    assert everything(connection)["task"] == "t.x"
    assert not planned(connection, both.replace("task: own, ", ""))
    add(connection, "other", job_policy={"template": "x"}, every=timedelta(1), task="own")
    text = "schedules: {other: {every: 1 day, job_policy: {template: x}}}"
    assert synced(connection, text, adopt=True).adopted == {"other": "sql"}
    assert everything(connection, "other")["task"] == "t.x"


@pytest.mark.usefixtures("stock")
def test_lanes_and_templates_must_be_there(connection: Connection) -> None:
    text = """\
defaults: {job_policy: {lane: gpo}}
schedules:
  s: {task: t, every: 5}
  u: {every: 5, job_policy: {template: z, lane: gpu}}
  v: {every: 5, job_policy: {template: x, lane: gpu}}
"""
    assert refused(connection, text) == [
        "1:24: defaults: job_policy: lane",
        "4:29: u: job_policy: template",
    ]
    with connections.transaction(connection):  # those of other namespaces are not
        connection.exec_driver_sql("UPDATE pgbeat.lanes SET namespace = 'shop'")
    assert refused(connection, "schedules: {s: {task: t, every: 5, job_policy: {lane: gpu}}}") == [
        "1:48: s: job_policy: lane"
    ]
