"""Lanes, templates and webhooks of files: plans, rows, whose they are, and exports."""

import re
import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.errors import Busy, InvalidJob
from pgbeat.jobs.verbs import lane_control, template_control
from pgbeat.names import name_problem
from pgbeat.schedules import model as schedules
from pgbeat.schedules.files import InvalidFile, exports, plans, read, rows, yaml_documents
from pgbeat.schedules.files.nouns import nouns
from pgbeat.webhooks import control as webhook_control
from pgbeat.webhooks.formats import FORMATS
from pgbeat.webhooks.model import EVENTS
from tests.support.command_line import Sql
from tests.support.rows import (
    make_calendar,
    make_job,
    make_lane,
    make_template,
    make_webhook,
    unit_on,
)

ENVIRON = {
    "ROOM_URL": "https://hooks.slack.com/1",
    "PAGER_KEY": "a" * 32,
    "SECRET": "whsec_" + "A" * 40,
}


def synced(
    connection: Connection, text: str, environ: dict[str, str] = ENVIRON, **ways: bool
) -> plans.Plan:
    """Does what the plan says; the plan that was done."""
    file = read(text, "f.yaml", nouns=nouns(environ))
    unit = unit_on(connection)
    with unit.transaction():
        plan = plans.make(connection, file, "default", **ways)
        file.require_valid(plan.mistakes)
        rows.lock(connection, plan)
        assert plans.make(connection, file, "default", **ways) == plan
        rows.apply(unit, file, plan)
    again = plans.make(connection, file, "default", **ways)
    assert not again and not again.is_noted
    return plan


def refused(connection: Connection, text: str, **ways: Any) -> list[str]:
    """The mistakes, each `line:column: sentence`."""
    with pytest.raises(InvalidFile) as raised:
        synced(connection, text, **ways)
    return [f"{m.line}:{m.column}: {m.message}" for m in raised.value.mistakes]


def changes(plan: plans.Plan, section: str) -> dict[str, dict[str, tuple[Any, Any, bool]]]:
    """The changes of fields, each with whether it is drift."""
    return {
        name: {change.field: (change.old, change.new, change.by_hand) for change in changed}
        for name, changed in plan.sections[section].changed.items()
    }


TEXT = """\
lanes:
  gpu: {max_running: 2, rate: 10/minute}
templates:
  resize: {task: shop.resize, kwargs: {width: 800}, job_policy: {lane: gpu, retry_base: 60}}
schedules:
  nightly: {cron: 0 2 * * *, job_policy: {template: resize, lane: gpu}}
webhooks:
  pager: {url: 'https://a.b/', events: [job.failed], secret_env: SECRET}
  room: {url_env: ROOM_URL, events: [all], format: slack}
"""


# -- plans and rows --------------------------------------------------------------------------------


def test_what_the_file_has_is_added_in_an_order_that_works(
    connection: Connection, sql: Sql
) -> None:
    plan = synced(connection, TEXT)
    assert {name: list(part.added) for name, part in plan.sections.items()} == {
        "lanes": ["gpu"],
        "templates": ["resize"],
        "webhooks": ["pager", "room"],
    }
    assert sql("SELECT name, max_running, rate_limit FROM pgbeat.lanes") == [("gpu", 2, 10)]
    assert sql("SELECT name, task, kwargs, job_policy FROM pgbeat.templates") == [
        ("resize", "shop.resize", {"width": 800}, {"lane": "gpu", "retry_base": 60})
    ]
    assert sql("SELECT name, task FROM pgbeat.schedules") == [("nightly", "shop.resize")]
    assert sql("SELECT name, url, format, secret FROM pgbeat.webhooks ORDER BY 1")[0] == (
        "pager",
        "https://a.b/",
        "standard",
        ENVIRON["SECRET"],
    )
    assert sql("SELECT url FROM pgbeat.webhooks WHERE name = 'room'") == [(ENVIRON["ROOM_URL"],)]


def test_only_what_differs_is_changed(connection: Connection, sql: Sql) -> None:
    synced(connection, TEXT)
    unit = unit_on(connection)
    with unit.transaction():
        lane_control.pause(unit, "gpu")
        lane_control.save(unit, "gpu", lane_control.rate_changes("1/minute", "1 hour"))
    made = sql("SELECT created_at FROM pgbeat.lanes")
    text = TEXT.replace("max_running: 2", "max_running: 3").replace("width: 800", "width: 900")
    plan = synced(connection, text.replace("[job.failed]", "[job.failed, job.late]"))
    assert changes(plan, "lanes") == {"gpu": {"max_running": (2, 3, False)}}
    assert changes(plan, "templates") == {
        "resize": {"kwargs": ({"width": 800}, {"width": 900}, False)}
    }
    assert changes(plan, "webhooks") == {
        "pager": {"events": (["job.failed"], ["job.failed", "job.late"], False)}
    }
    # Pauses and rates that hold for a time are operation.
    query = "SELECT max_running, temporary_limit, paused_at IS NULL FROM pgbeat.lanes"
    assert sql(query) == [(3, 1, False)]
    assert sql("SELECT created_at FROM pgbeat.lanes") == made


def test_what_the_file_leaves_out_has_its_default_again(connection: Connection, sql: Sql) -> None:
    synced(
        connection,
        "lanes: {a: {policy: tags, options: {x: 1}, max_running: 1, rate: 5/s, rate_key: tag}}",
    )
    plan = synced(connection, "lanes: {a: {policy: resources, options: {x: 1}}}")
    assert set(changes(plan, "lanes")["a"]) == {"max_running", "rate", "rate_key", "policy"}
    query = "SELECT policy, options, max_running, rate_limit, rate_key FROM pgbeat.lanes"
    assert sql(query) == [("resources", {"x": 1}, None, None, None)]


def test_a_template_moves_with_its_schedules(connection: Connection, sql: Sql) -> None:
    synced(connection, TEXT)
    synced(connection, TEXT.replace("shop.resize", "shop.crop"))
    assert sql("SELECT task FROM pgbeat.schedules") == [("shop.crop",)]


# -- drift and ownership ---------------------------------------------------------------------------


def test_an_edit_by_hand_is_drift(connection: Connection, sql: Sql) -> None:
    synced(connection, TEXT)
    sql("UPDATE pgbeat.lanes SET max_running = 9")
    sql("UPDATE pgbeat.templates SET queue = 'slow'")
    sql("UPDATE pgbeat.webhooks SET events = ARRAY['job.late'] WHERE name = 'pager'")
    plan = synced(connection, TEXT)
    assert changes(plan, "lanes") == {"gpu": {"max_running": (9, 2, True)}}
    assert changes(plan, "templates") == {"resize": {"queue": ("slow", None, True)}}
    assert changes(plan, "webhooks") == {"pager": {"events": (["job.late"], ["job.failed"], True)}}
    assert plan.drifted == ["gpu", "resize", "pager"]
    assert sql("SELECT max_running FROM pgbeat.lanes") == [(2,)]


def test_an_edit_that_the_file_follows_is_no_change(connection: Connection, sql: Sql) -> None:
    synced(connection, "lanes: {gpu: {max_running: 2}}")
    sql("UPDATE pgbeat.lanes SET max_running = 9")
    plan = synced(connection, "lanes: {gpu: {max_running: 9}}")
    assert not plan and plan.sections["lanes"].noted == ["gpu"]
    assert sql("SELECT file_definition FROM pgbeat.lanes") == [({"max_running": 9},)]


def made_by_hand(sql: Sql) -> None:
    make_lane(sql, "gpu", 7)
    make_template(sql, "resize", task="theirs", created_by="user:me")
    make_webhook(sql, "pager", url="https://c.d/")


def test_what_was_made_by_hand_is_left_alone(connection: Connection, sql: Sql) -> None:
    made_by_hand(sql)
    plan = synced(connection, TEXT, prune=True)
    assert plan.sections["lanes"].taken == {"gpu": None}
    assert plan.sections["templates"].taken == {"resize": "user:me"}
    assert sql("SELECT max_running, file_definition FROM pgbeat.lanes") == [(7, None)]
    assert sql("SELECT task FROM pgbeat.templates") == [("theirs",)]
    synced(connection, "lanes: {}\ntemplates: {}\nwebhooks: {}\nschedules: {}", prune=True)
    assert sql("SELECT name FROM pgbeat.lanes") == [("gpu",)]
    assert sql("SELECT name FROM pgbeat.webhooks") == [("pager",)]  # `room` was the file's


def test_what_was_made_by_hand_can_be_adopted(connection: Connection, sql: Sql) -> None:
    made_by_hand(sql)
    plan = synced(connection, TEXT, adopt=True)
    assert plan.sections["lanes"].adopted == {"gpu": None}
    assert plan.sections["templates"].adopted == {"resize": "user:me"}
    assert sql("SELECT max_running FROM pgbeat.lanes") == [(2,)]
    synced(connection, "lanes: {}\ntemplates: {}\nwebhooks: {}\nschedules: {}", prune=True)
    for table in ("lanes", "templates", "webhooks", "schedules"):
        assert sql(f"SELECT * FROM pgbeat.{table}") == []


def test_what_another_file_made_is_kept_and_sections_it_lacks_too(
    connection: Connection, sql: Sql
) -> None:
    synced(connection, TEXT)
    plan = synced(connection, "lanes: {cpu: {max_running: 1}}")
    assert plan.sections["lanes"].kept == ["gpu"]
    assert plan.kept == []
    synced(connection, "webhooks: {}", prune=True)
    counts = "SELECT (SELECT count(*) FROM pgbeat.lanes), (SELECT count(*) FROM pgbeat.schedules)"
    assert sql(counts) == [(2, 1)]
    assert sql("SELECT * FROM pgbeat.webhooks") == []


def test_what_is_in_use_is_not_removed_and_nothing_else_either(
    connection: Connection, sql: Sql
) -> None:
    synced(connection, "lanes: {gpu: {max_running: 1}}\nwebhooks: {}\nschedules: {}")
    make_job(sql, lane="gpu")
    with pytest.raises(InvalidJob, match="'gpu' is in use: 1 job to come; nothing is"):
        synced(connection, "lanes: {}\nschedules: {s: {task: t, every: 5}}", prune=True)
    assert schedules.listing(connection) == []


# -- webhooks --------------------------------------------------------------------------------------

PAGER = "webhooks: {pager: {url: 'https://a.b/', events: [job.failed], secret_env: SECRET}}"


def secret(sql: Sql) -> tuple[str, str | None]:
    ((current, previous),) = sql("SELECT secret, previous_secret FROM pgbeat.webhooks")
    return current, previous


def test_a_new_secret_of_the_environment_replaces_the_old_one(
    connection: Connection, sql: Sql
) -> None:
    synced(connection, PAGER)
    other = "whsec_" + "B" * 40
    plan = synced(connection, PAGER, {"SECRET": other})
    assert changes(plan, "webhooks") == {
        "pager": {"secret_env": ("(another value)", "SECRET", False)}
    }
    assert secret(sql) == (other, ENVIRON["SECRET"])


def test_what_limits_a_webhook_follows_its_file(connection: Connection, sql: Sql) -> None:
    query = "SELECT per_incident, labels, schedules, tasks FROM pgbeat.webhooks"
    synced(connection, PAGER)
    assert sql(query) == [(False, {}, [], [])]
    limits = "per_incident: true, labels: {team: a}, schedules: ['n-*'], tasks: [shop.pay]}}"
    plan = synced(connection, PAGER.replace("}}", f", {limits}"))
    assert set(changes(plan, "webhooks")["pager"]) == {
        "per_incident",
        "labels",
        "schedules",
        "tasks",
    }
    assert sql(query) == [(True, {"team": "a"}, ["n-*"], ["shop.pay"])]
    synced(connection, PAGER)
    assert sql(query) == [(False, {}, [], [])]


def test_a_variable_that_is_not_set_keeps_the_stored_value(
    connection: Connection, sql: Sql
) -> None:
    synced(connection, PAGER)
    plan = synced(connection, PAGER, {})
    assert not plan
    noun = plan.sections["webhooks"].section.noun
    (definition,) = plan.sections["webhooks"].applied.values()
    assert "keeps its own" in str(noun.remark(definition, is_new=False))
    assert secret(sql) == (ENVIRON["SECRET"], None)


def test_a_new_webhook_needs_its_variables(connection: Connection, sql: Sql) -> None:
    assert refused(connection, TEXT, environ={}) == [
        "8:66: webhook 'pager': secret_env: the environment has no SECRET; a new webhook needs it, "
        "set it",
        "9:19: webhook 'room': url_env: the environment has no ROOM_URL; a new webhook needs it, "
        "set it",
    ]
    assert sql("SELECT * FROM pgbeat.lanes") == []


def test_a_random_secret_stays(connection: Connection, sql: Sql) -> None:
    text = PAGER.replace(", secret_env: SECRET", "")
    synced(connection, text)
    before = secret(sql)
    synced(connection, text.replace("job.failed", "all"))
    assert secret(sql) == before


def test_a_format_can_not_change(connection: Connection) -> None:
    synced(connection, TEXT)
    text = TEXT.replace("slack", "discord")
    assert refused(connection, text) == [
        "9:52: webhook 'room': format is slack and can't become discord; declare another webhook"
    ]


def test_whether_it_is_enabled(connection: Connection, sql: Sql) -> None:
    query = "SELECT enabled FROM pgbeat.webhooks"
    synced(connection, PAGER)
    unit = unit_on(connection)
    with unit.transaction():
        webhook_control.disable(unit, "pager")
    assert not synced(connection, PAGER)  # a person's doing stays
    off = PAGER.replace("}}", ", enabled: false}}")
    assert synced(connection, off).sections["webhooks"].noted == ["pager"]
    with unit.transaction():
        webhook_control.enable(unit, "pager")
    assert changes(synced(connection, off), "webhooks") == {
        "pager": {"enabled": (True, False, True)}
    }
    assert sql(query) == [(False,)]
    synced(connection, PAGER)  # the file had disabled it
    assert sql(query) == [(True,)]


# -- mistakes that the database knows --------------------------------------------------------------


def test_lanes_and_templates_of_the_file_can_be_named(connection: Connection, sql: Sql) -> None:
    text = TEXT.replace("{lane: gpu, retry", "{lane: cpu, retry").replace("resize,", "resiz,")
    first, second = refused(connection, text)
    assert first.startswith("4:64: template 'resize': job_policy: lane: there is no lane 'cpu'; d")
    assert second.startswith("6:42: nightly: job_policy: template: there is no template 'resiz'; ")
    assert sql("SELECT * FROM pgbeat.lanes") == []


def test_what_a_prune_removes_can_not_be_named(connection: Connection) -> None:
    synced(connection, TEXT)
    text = TEXT.replace("  gpu: {max_running: 2, rate: 10/minute}", "  cpu: {max_running: 1}")
    assert len(refused(connection, text, prune=True)) == 2


def test_what_only_writing_finds_is_told_by_its_line(connection: Connection, sql: Sql) -> None:
    text = (
        "schedules: {s: {task: t, every: 5}}\nlanes:\n  a: {max_running: 1}\n  b: {policy: Own}\n"
    )
    (mistake,) = refused(connection, text)
    assert mistake.startswith("4:15: lane 'b': concurrency policy 'Own' is not registered")
    assert sql("SELECT name FROM pgbeat.lanes") == []


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("lanes: {x: {max_running: 1}}", make_lane),
        ("templates: {x: {task: t}}", make_template),
        ("webhooks: {x: {url: 'https://a.b', events: [all]}}", make_webhook),
        ("calendars: {x: {weekdays: [sat]}}", make_calendar),
    ],
)
def test_a_name_that_is_taken_meanwhile(
    connection: Connection, sql: Sql, text: str, make: Callable[..., Any]
) -> None:
    file = read(text, "f.yaml")
    plan = plans.make(connection, file, "default")
    make(sql, "x")
    unit = unit_on(connection)
    with pytest.raises(Busy, match="'x' was added just now"), unit.transaction():
        rows.apply(unit, file, plan)


# -- exports ---------------------------------------------------------------------------------------

_NAMES = st.text(string.ascii_letters + " -_:#é~{", min_size=1, max_size=12).filter(
    lambda name: name_problem(name) is None
)
_WORDS = st.text(string.printable + "é🎉", min_size=1, max_size=20).filter(
    lambda text: text.strip() and "{" not in text and text.isprintable()
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=5,
)
_LIMIT = st.integers(0, 1_000_000)
_KEYS = st.sampled_from(["task", "tag", "created_by", "kwargs.tenant"])
_RATE = st.fixed_dictionaries(
    {
        "rate": st.builds(
            "{}/{:f} s".format,
            st.integers(1, 1_000_000),
            st.decimals("0.000001", 30_000_000, places=6),
        )
    },
    optional={"rate_key": _KEYS, "rate_unit": st.just("tokens")},
)
_LANES = st.builds(
    lambda *parts: {key: value for part in parts for key, value in part.items()},
    st.fixed_dictionaries({"max_running": st.none() | _LIMIT}),
    st.just({}) | _RATE,
    st.just({}) | st.fixed_dictionaries({"fair_by": _KEYS}, optional={"max_per_key": _LIMIT}),
    st.just({})
    | st.fixed_dictionaries({"policy": st.just("tags"), "options": st.just({"heavy": 1, "*": 4})}),
)
_POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "lane": st.just("first"),
        "priority": st.integers(0, 255),
        "retry_base": st.integers(0, 10**6) | st.just("1h 30m"),
        "tags": st.lists(_WORDS, max_size=2),
        "unique": st.booleans(),
        "resources": st.dictionaries(_WORDS, st.floats(0.1, 1e6), max_size=2),
    },
)
_TEMPLATES = st.fixed_dictionaries(
    {"task": st.just("shop.resize")},
    optional={
        "args": st.lists(_JSON, max_size=2),
        "kwargs": st.dictionaries(_WORDS, _JSON, max_size=2),
        "queue": st.just("slow"),
        "options": st.just({"priority": 3, "headers": {"a": "no"}}),
        "job_policy": _POLICIES,
        "description": _WORDS,
    },
)
_SECRETS = {"pagerduty": "a" * 32, "opsgenie": "b" * 36}
_WEBHOOKS = st.tuples(
    st.sampled_from(FORMATS),
    st.just(["all"]) | st.lists(st.sampled_from(EVENTS), min_size=1),
    st.booleans(),
    st.fixed_dictionaries(
        {},
        optional={
            "per_incident": st.booleans(),
            "labels": st.just({"team": "billing"}),
            "schedules": st.just(["nightly-*", "weekly"]),
            "tasks": st.just(["shop.*"]),
        },
    ),
)


def write_all(unit: UnitOfWork, kinds: dict[str, Any]) -> None:
    lane_control.save(unit, "first", {"max_running": 1})
    held = lane_control.rate_changes("5/minute", "1 hour")
    lane_control.save(unit, "held", {"max_running": None, "rate_key": "task"} | held)
    for name, values in kinds["lanes"].items():
        lane_control.save(unit, name, lane_control.read_changes(values))
    for name, values in kinds["templates"].items():
        template_control.put(unit, name, **values)
    for name, (format, events, is_enabled, others) in kinds["webhooks"].items():
        key = {"format": format, "secret": _SECRETS.get(format)}
        webhook_control.add(unit, name, "https://a.b/", events, **key, **others)
        if not is_enabled:
            webhook_control.disable(unit, name)


@settings(
    max_examples=20,
    deadline=None,
    phases=[Phase.generate],  # an example takes a second: to shrink one takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    kinds=st.fixed_dictionaries(
        {
            "lanes": st.dictionaries(_NAMES, _LANES, max_size=4),
            "templates": st.dictionaries(_NAMES, _TEMPLATES, max_size=3),
            "webhooks": st.dictionaries(_NAMES, _WEBHOOKS, max_size=3),
        }
    ),
    is_json=st.booleans(),
)
def test_an_export_makes_an_empty_database_the_same(
    connection: Connection, sql: Sql, kinds: dict[str, Any], is_json: bool
) -> None:
    clear(sql)
    unit = unit_on(connection)
    with unit.transaction():
        write_all(unit, kinds)
    document = exported(connection)
    text = exports.as_json(document) if is_json else yaml_documents.write(document)
    assert "whsec" not in text
    environ = {
        values[key]: secret_of(values["format"], key)
        for values in document.get("webhooks", {}).values()
        for key in ("url_env", "secret_env")
        if key in values
    }
    file = read(text, "f", is_json=is_json, nouns=nouns(environ))
    file.require_valid()
    # To adopt what it was made of changes nothing but secrets.
    plan = plans.make(
        connection, read(text, "f", is_json=is_json, nouns=nouns({})), "default", adopt=True
    )
    assert not any(part.changed or part.added for part in plan.sections.values())
    clear(sql)
    with unit.transaction():
        plan = plans.make(connection, file, "default")
        file.require_valid(plan.mistakes)
        rows.apply(unit, file, plan)
    assert exported(connection) == document
    assert not plans.make(connection, file, "default")


def test_an_export_names_a_variable_for_each_webhook(connection: Connection, sql: Sql) -> None:
    names = ("room-a", "room_a", "Room-A", "room-a-", "комната")
    for name in names:
        make_webhook(sql, name, format="slack")
    exports_of = exported(connection)["webhooks"]
    variables = [exports_of[name]["url_env"] for name in names]
    assert variables[0] == "WEBHOOK_ROOM_A_URL"
    assert len(set(variables)) == len(names)
    assert all(re.fullmatch("WEBHOOK(_[A-Z0-9]+)+_URL", variable) for variable in variables)


def clear(sql: Sql) -> None:
    for table in ("lanes", "templates", "webhooks"):
        sql(f"DELETE FROM pgbeat.{table}")


def secret_of(format: str, key: str) -> str:
    return "https://hooks.example.com/1" if key == "url_env" else _SECRETS[format]


def exported(connection: Connection) -> dict[str, Any]:
    sections = {noun.section: noun.export(connection, "default") for noun in nouns({})}
    return exports.document([], sections)
