"""Exports: files that make just the rows that they were made from."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from pgbeat.database import connections
from pgbeat.errors import InvalidSchedule
from pgbeat.schedules import control, writes
from pgbeat.schedules import model as schedules
from pgbeat.schedules.calendars import model as calendars
from pgbeat.schedules.files import exports, plans, read, rows, yaml_documents
from pgbeat.schedules.files.fields import FIELDS
from pgbeat.schedules.files.nouns import nouns
from pgbeat.schedules.model import Schedule
from tests.support.command_line import Sql
from tests.support.rows import unit_on


def random_values(chance: random.Random) -> dict[str, Any]:
    """Something for every field, as a row has it."""

    def length() -> timedelta:
        return timedelta(seconds=chance.choice([1, 60, 3600, 86_400]) * chance.randrange(1, 300))

    def text() -> str:
        return chance.choice(NASTY)

    moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=chance.randrange(10**16))
    base = length()
    made = {
        "task": "t",
        "launcher": chance.choice(["GenericLauncher", "Other"]),
        "after_outcome": chance.choice(["completed", "failed", "finished"]),
        "timezone": chance.choice([None, "UTC", "Europe/Oslo"]),
        "args": [text(), chance.random() * 10 ** chance.randrange(-20, 30), None, [True, {}]],
        "kwargs": {text(): {text(): [text()]}, "n": chance.randrange(10**20)},
        "queue": text(),
        "options": {"headers": {text(): text()}},
        "condition_sql": text(),
        "starts_at": moment,
        "ends_at": moment + length(),
        "max_runs": chance.randrange(1, 9),
        "jitter": length(),
        "catch_up": chance.choice(["latest", "all", "none"]),
        "catch_up_limit": chance.randrange(1, 10_000),
        "grace": length(),
        "overlap": chance.choice(["allow", "skip", "queue_one", "cancel_previous"]),
        "min_interval": length(),
        "max_retries": chance.randrange(99),
        "retry_base": base,
        "retry_factor": 1 + chance.random(),
        "retry_cap": base + length(),
        "probe_after": length(),
        "owner": text(),
        "calendar": chance.choice([None, "office"]),
        "job_policy": chance.choice([{}, {"lane": "gpu"}, random_policy(chance)]),
    }
    for name in list(made):
        if name not in ("task", "launcher", "retry_base", "retry_cap") and chance.random() < 0.4:
            del made[name]
    when = {
        "cron": "0 2 * * mon#1",
        "every": length(),
        "once_at": moment,
        "solar": "sunset 59.91 10.75",
        "rrule": "FREQ=DAILY;INTERVAL=3",
    }
    chosen = chance.choice(list(when))
    return made | {chosen: when[chosen]}


def random_policy(chance: random.Random) -> dict[str, Any]:
    """Something for every key of a job policy, as people write it."""
    base = chance.randrange(10**6)
    made = {
        "lane": "gpu",
        "priority": chance.randrange(256),
        "max_attempts": chance.randrange(1, 9),
        "retry_base": base / 10,
        "retry_cap": base,
        "tags": ["1", "no", "a: b"],
        "resources": {"gpu": 1, "memory_gb": chance.random() + 0.1, "~": 2.0},
        "unique": chance.random() < 0.5,
        "unique_key": chance.choice(["k", "5", "true"]),
        "unique_for": f"{chance.randrange(1, 99)} minutes",
        "requires_approval": True,
    }
    dropped = [name for name in made if not name.startswith("retry") and chance.random() < 0.4]
    return {name: value for name, value in made.items() if name not in dropped}


NASTY = [
    "plain", "ünïcode 🎉", "no", "1e3", "0x1F", "2026-01-01", "1:30", "null", "~", "<<", "=",
    "- a", "a: b", "a #b", "'", '"', "*x", "&x", "!x", "%x", "@x", "`x", "{a}", "[a]", "a\nb",
    "\na\n\n", "  a\n b\n", "a \n b \n", "a\tb\n\tc", "line\rend\r\n", "\x85a\u2028b\ufeff",
    "trailing ", "\\n", "x" * 300, "a\n" + "  b\n" * 3 + "\n\n", ".5", "5.", "0o17", "+1", "?",
    "schedules:\n  s:\n    task: t\n", "|", ">", "---", "...", "-1_000", "true", ",", "a,b", "\x7f",
]  # fmt: skip


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_what_is_exported_makes_just_the_same_rows(
    connection: Connection, sql: Sql, form: str
) -> None:
    chance = random.Random(form)  # noqa: S311
    office = {"dates": ["12-25"], "windows": [{"from": "22:00", "to": "06:00"}]}
    calendars.add(connection, "office", office)
    sql("INSERT INTO pgbeat.lanes (name) VALUES ('gpu')")
    names = ["plain", "no", "1", "a: b", "- x", "ünï", "~", "x" * 200, "{}", "'", "s s", "#", "<<"]
    names += [f"s{n}" for n in range(60)]
    for name in names:
        with connections.transaction(connection):
            writes.add(connection, name, source="sql", **random_values(chance))
        if chance.random() < 0.2:
            control.pause(unit_on(connection), name)
        if chance.random() < 0.2:
            control.disable(unit_on(connection), name)
    with connections.transaction(connection):
        writes.add(connection, "then", source="cli", task="t", after="s1", after_outcome="failed")
    before = schedules.listing(connection)
    document = exports.document(before, declared(connection))
    text = exports.as_json(document) if form == "json" else yaml_documents.write(document)
    file = read(text, "schedules", is_json=form == "json")
    assert not plans.make(connection, file, "default", adopt=True).changed
    sql("TRUNCATE pgbeat.schedules, pgbeat.calendars")
    with connections.transaction(connection):
        rows.apply(unit_on(connection), file, plans.make(connection, file, "default"))
    after = schedules.listing(connection)
    assert [kept(row) for row in after] == [kept(row) for row in before]
    again = exports.document(after, declared(connection))
    assert again == document
    assert not plans.make(connection, file, "default")


def declared(connection: Connection, namespace: str = "default") -> dict[str, Any]:
    """What a file declares beside schedules."""
    return {noun.section: noun.export(connection, namespace) for noun in nouns({})}


def kept(row: Schedule) -> dict[str, Any]:
    """What a file says of a row."""
    values = {name: value for name, value in row._asdict().items() if name in FIELDS}
    return values | {"name": row.name, "paused": row.paused_at is not None}


def test_an_export_is_made_to_be_read(connection: Connection) -> None:
    text = """\
namespace: shop

calendars:
  office:
    weekdays: [sat, sun]

schedules:
  nightly:
    task: shop.backup
    cron: 0 2 * * *
    timezone: Europe/Oslo
    kwargs:
      area: DK1
    condition_sql: |
      SELECT count(*) > 0
        FROM orders
       WHERE NOT done
    retry_base: 1 minute 30 seconds
    job_policy:
      max_attempts: 5
      retry_base: 1 minute 30 seconds
      tags: [heavy]
      resources:
        gpu: 1

  then:
    task: shop.report
    after: nightly
    args: [1, two]
    starts_at: '2026-03-01T00:00:00Z'
    enabled: false
"""
    file = read(text, "schedules.yaml")
    unit = unit_on(connection)
    unit.namespace = "shop"
    rows.apply(unit, file, plans.make(connection, file, "shop"))
    document = exports.document(
        schedules.listing(connection, namespace="shop"), declared(connection, "shop"), "shop"
    )
    assert yaml_documents.write(document) == text


def test_what_no_file_can_say_is_not_exported(connection: Connection, sql: Sql) -> None:
    sql(
        "INSERT INTO pgbeat.schedules (name, source, task, args, every) VALUES "
        "('in/code', 'code', 't', '[]', '5 s'), ('lazy', 'code', 't', NULL, '5 s'), "
        "('relative', 'code', 't', '[]', NULL)"
    )
    for row in schedules.listing(connection):
        with pytest.raises(InvalidSchedule, match="can't be in a file: "):
            exports.document([row])
