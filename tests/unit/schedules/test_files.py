"""Files: what they may say, every mistake with its line, the plan, and the rows that it makes."""

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgbeat.config import Settings
from pgbeat.errors import ConfigError
from pgbeat.schedules.files import File, InvalidFile, read, yaml_documents
from pgbeat.schedules.files.fields import FIELDS
from pgbeat.schedules.files.kinds import Duration
from pgbeat.schedules.files.schema import schema
from pgbeat.schedules.model import TIMETABLES
from pgbeat.schedules.writes import EDITABLE
from tests.support.processes import ROOT

FUNCTIONS = {
    "plugins.electricity_price.fetch_prices": "shop.prices",
    "reports.generate_daily": "shop.report",
    "maintenance.cleanup": "maintenance.cleanup",
}


def loaded(text: str, **options: Any) -> File:
    file = read(text, "schedules.yaml", **options)
    file.require_valid()
    return file


def values(text: str, name: str = "s", **options: Any) -> dict[str, Any]:
    """What a schedule's definition says beyond the defaults, as a row has it."""
    definition = loaded(text, **options).definitions[name]
    return {k: v for k, v in definition.values.items() if v != FIELDS[k].default}


def mistakes(text: str, **options: Any) -> list[str]:
    """The lines of the refusal, each `line:column: sentence`."""
    with pytest.raises(InvalidFile) as raised:
        loaded(text, **options)
    first, *lines = str(raised.value).splitlines()
    count = len(lines)
    assert first == (f"schedules.yaml has {count} mistake{'s' * (count != 1)}; nothing is written:")
    assert all(line.startswith("  schedules.yaml:") for line in lines)
    return [line.removeprefix("  schedules.yaml:") for line in lines]


def places(text: str, **options: Any) -> list[str]:
    """Where the mistakes are, each `line:column`."""
    return [":".join(line.split(":")[:2]) for line in mistakes(text, **options)]


# -- what a file may say ---------------------------------------------------------------------------


def test_the_least_there_is() -> None:
    text = "schedules:\n  s:\n    task: shop.backup\n    cron: 0 2 * * *\n"
    assert values(text) == {"task": "shop.backup", "cron": "0 2 * * *"}
    assert loaded(text).namespace is None
    assert loaded("schedules: {}").definitions == {}
    assert loaded("version: 1\nnamespace: shop\nschedulers: []\n").namespace == "shop"


EVERYTHING = """
schedules:
  s:
    task: shop.backup
    launcher: Nightly
    every: 1h 30m
    after_outcome: finished
    timezone: Europe/Oslo
    args: [1, two, {three: null}]
    kwargs: {area: DK1, deep: {er: [1.5, true]}}
    queue: slow
    options: {priority: 3}
    condition_sql: |
      SELECT count(*) > 0
        FROM orders
    starts_at: 2026-03-01
    ends_at: 2027-03-01T08:30+02:00
    max_runs: 7
    jitter: 90
    calendar: holidays
    catch_up: all
    catch_up_limit: 5
    grace: 10 min
    overlap: queue_one
    min_interval: 0.5
    max_retries: 0
    retry_base: 0
    retry_factor: 1.5
    retry_cap: 2 days
    probe_after: 6 hours
    job_policy: {lane: gpu, max_attempts: 5, retry_base: 1 min, tags: [heavy], unique: true}
    owner: data team
    enabled: false
    paused: true
"""


def test_everything_there_is() -> None:
    assert values(EVERYTHING) == {
        "task": "shop.backup",
        "launcher": "Nightly",
        "every": timedelta(hours=1.5),
        "after_outcome": "finished",
        "timezone": "Europe/Oslo",
        "args": [1, "two", {"three": None}],
        "kwargs": {"area": "DK1", "deep": {"er": [1.5, True]}},
        "queue": "slow",
        "options": {"priority": 3},
        "condition_sql": "SELECT count(*) > 0\n  FROM orders\n",
        "starts_at": datetime(2026, 2, 28, 23, tzinfo=UTC),
        "ends_at": datetime(2027, 3, 1, 6, 30, tzinfo=UTC),
        "max_runs": 7,
        "jitter": timedelta(seconds=90),
        "calendar": "holidays",
        "catch_up": "all",
        "catch_up_limit": 5,
        "grace": timedelta(minutes=10),
        "overlap": "queue_one",
        "min_interval": timedelta(seconds=0.5),
        "max_retries": 0,
        "retry_base": timedelta(0),
        "retry_factor": 1.5,
        "retry_cap": timedelta(days=2),
        "probe_after": timedelta(hours=6),
        "owner": "data team",
        "enabled": False,
        "paused": True,
        "job_policy": {
            "lane": "gpu",
            "max_attempts": 5,
            "retry_base": 60,
            "tags": ["heavy"],
            "unique": True,
        },
    }


def test_all_that_people_may_set_is_a_field() -> None:
    # A next time is no property of a schedule: it would be another at each sync.
    assert EDITABLE - {"next_run"} == FIELDS.keys() - {"enabled", "paused"}


@pytest.mark.parametrize(
    ("written", "field", "expected"),
    [
        ("cron: '@daily'", "cron", "@daily"),
        ("cron: '0 0 l * *'", "cron", "0 0 l * *"),
        ("once_at: 2026-01-31T08:00:00Z", "once_at", datetime(2026, 1, 31, 8, tzinfo=UTC)),
        ("once_at: '2026-01-31 08:00+05:30'", "once_at", datetime(2026, 1, 31, 2, 30, tzinfo=UTC)),
        ("solar: sunset 59.91 10.75", "solar", "sunset 59.91 10.75"),
        ("rrule: FREQ=WEEKLY;BYDAY=MO", "rrule", "FREQ=WEEKLY;BYDAY=MO"),
        ("after: other", "after", "other"),
        ("every: 90", "every", timedelta(seconds=90)),
        ("every: '90'", "every", timedelta(seconds=90)),
        ("every: 2 weeks", "every", timedelta(weeks=2)),
    ],
)
def test_ways_to_say_when(written: str, field: str, expected: object) -> None:
    assert values(f"schedules: {{s: {{task: t, {written}}}}}")[field] == expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("0x1F", 31),
        ("010", 10),
        ("1e3", 1000.0),
        ("~", None),
        ("", None),
        ("'5'", "5"),
        ("1_000", "1_000"),
        (".5", 0.5),
        ("!!str 5", "5"),
        ("0o17", 15),
    ],
)
def test_words_mean_what_they_mean_in_yaml_1_2(word: str, expected: object) -> None:
    found = values(f"schedules:\n  s:\n    task: t\n    every: 5\n    kwargs: {{x: {word}}}\n")
    assert found["kwargs"] == {"x": expected}
    assert type(found["kwargs"]["x"]) is type(expected)


def test_defaults_hold_where_a_schedule_says_nothing() -> None:
    text = """
        defaults: {timezone: Europe/Oslo, every: 5 min, queue: slow, options: {priority: 1}}
        schedules:
          plain: {task: t}
          other: {task: t, cron: '@daily', queue: quick, options: {expires: 9}}
          none: {task: t, queue: null, timezone: null}
    """
    assert values(text, "plain") == {
        "task": "t",
        "timezone": "Europe/Oslo",
        "every": timedelta(minutes=5),
        "queue": "slow",
        "options": {"priority": 1},
    }
    assert values(text, "other") == {
        "task": "t",
        "timezone": "Europe/Oslo",
        "cron": "@daily",
        "queue": "quick",
        "options": {"expires": 9},
    }
    assert values(text, "none") == {
        "task": "t",
        "every": timedelta(minutes=5),
        "options": {"priority": 1},
    }


def test_a_time_without_an_offset_is_of_the_schedules_zone() -> None:
    text = "defaults: {starts_at: 2026-07-01T12:00, every: 5, task: t}\nschedules:\n"
    text += "  a: {timezone: Europe/Oslo}\n  b: {timezone: Asia/Kolkata}\n"
    assert values(text, "a")["starts_at"] == datetime(2026, 7, 1, 10, tzinfo=UTC)
    assert values(text, "b")["starts_at"] == datetime(2026, 7, 1, 6, 30, tzinfo=UTC)


def test_anchors_and_merges() -> None:
    text = """
        x-common: &common {task: t, queue: slow}
        x-more: &more {<<: *common, owner: ops}
        schedules:
          s: {<<: *more, every: 5, queue: quick}
          two: {<<: [*common, {owner: me, queue: never}], every: 5}
    """
    assert values(text) == {
        "task": "t",
        "queue": "quick",
        "owner": "ops",
        "every": timedelta(seconds=5),
    }
    assert values(text, "two")["queue"] == "slow"
    assert values(text, "two")["owner"] == "me"


def test_a_list_with_names() -> None:
    text = "schedules:\n- {name: s, task: t, every: 5}\n- {name: u, task: t, cron: '@daily'}\n"
    assert list(loaded(text).definitions) == ["s", "u"]
    assert values(text) == {"task": "t", "every": timedelta(seconds=5)}


def test_json_is_read_without_yaml() -> None:
    text = (
        '{"$schema": "x", "schedules": {"s": {"task": "t", "every": 5, "queue": "\\ud83d\\ude00"}}}'
    )
    assert values(text, is_json=True)["queue"] == "😀"
    assert values("\ufeff" + text, is_json=True)["task"] == "t"


SEEDS = """
schedulers:
  - name: electricity_price_fetcher
    trigger: interval
    interval_minutes: 15
    function: plugins.electricity_price.fetch_prices
    args:
      area: DK1
    enabled: true
    retry_on_failure: true
    max_retries: 3
    timeout_seconds: 300

  - name: daily_report
    trigger: cron
    cron: "0 8 * * *"  # 8 AM daily
    function: reports.generate_daily
    enabled: true

  - name: cleanup_old_data
    trigger: cron
    cron: "0 3 * * 0"  # 3 AM every Sunday
    function: maintenance.cleanup
    args:
      retention_days: 365
"""


def test_functions_and_how_often() -> None:
    assert values(SEEDS, "electricity_price_fetcher", functions=FUNCTIONS) == {
        "task": "shop.prices",
        "every": timedelta(minutes=15),
        "kwargs": {"area": "DK1"},
        "job_policy": {"max_attempts": 4},
        "options": {"time_limit": 300},
    }
    assert values(SEEDS, "daily_report", functions=FUNCTIONS) == {
        "task": "shop.report",
        "cron": "0 8 * * *",
    }
    assert values(SEEDS, "cleanup_old_data", functions=FUNCTIONS) == {
        "task": "maintenance.cleanup",
        "cron": "0 3 * * 0",
        "kwargs": {"retention_days": 365},
    }


def test_functions_with_what_else_a_schedule_has() -> None:
    text = """
        defaults: {options: {priority: 2}, timezone: Europe/Oslo, owner: ops}
        schedulers:
        - {name: s, function: maintenance.cleanup, interval_minutes: 0.5, args: [1, 2],
           retry_on_failure: false, max_retries: 3, timeout_seconds: 5, enabled: false,
           overlap: skip, trigger: interval, job_policy: {lane: gpu}}
        schedules:
          other: {task: t, after: s}
    """
    assert values(text, functions=FUNCTIONS) == {
        "task": "maintenance.cleanup",
        "every": timedelta(seconds=30),
        "args": [1, 2],
        "job_policy": {"lane": "gpu", "max_attempts": 1},
        "options": {"priority": 2, "time_limit": 5},
        "enabled": False,
        "overlap": "skip",
        "timezone": "Europe/Oslo",
        "owner": "ops",
    }
    assert values(text, "other", functions=FUNCTIONS)["after"] == "s"


def test_functions_say_how_often_a_job_is_tried_again() -> None:
    def job(words: str, defaults: str = "{}") -> Any:
        text = f"""
            defaults: {defaults}
            schedulers: [{{name: s, function: maintenance.cleanup, interval_minutes: 1, {words}}}]
        """
        given = values(text, functions=FUNCTIONS)
        assert "max_retries" not in given  # which is about decisions
        return given.get("job_policy")

    assert job("max_retries: 0") == {"max_attempts": 1}
    assert job("max_retries: 2, retry_on_failure: true") == {"max_attempts": 3}
    assert job("retry_on_failure: true") is None
    assert job("retry_on_failure: null, max_retries: null") is None
    assert job("retry_on_failure: false", "{job_policy: {lane: a, max_attempts: 7}}") == {
        "lane": "a",
        "max_attempts": 1,
    }


# -- mistakes --------------------------------------------------------------------------------------

WRONG = """\
version: 2
namspace: shop
defaults:
  max_retry: 3
  timezone: Mars/Phobos
schedules:
  nightly:
    task: shop.backup
    cron: 61 * * * *
    queu: slow
  both:
    task: shop.backup
    every: 15 minutes
    cron: "* * * * *"
  neither:
    task: shop.backup
  nightly:
    task: shop.other
  a/b: {task: t, every: 5}
  idle: {every: 5}
  after itself: {task: t, after: after itself}
  one: {task: t, after: two}
  two: {task: t, after: one}
  list: [1]
  7: {task: t, every: 5}
"""


def test_every_mistake_is_listed_by_line_and_column() -> None:
    found = mistakes(WRONG)
    said = found.pop(4)
    assert said.startswith("9:11: nightly: cron '61 * * * *': minute '61' is not valid: numbers")
    assert found == [
        "1:10: version is 2; this pgbeat reads version 1",
        "2:1: a file has no 'namspace' at its top; did you mean 'namespace'?",
        "4:3: defaults: there is no field 'max_retry'; did you mean 'max_retries'?",
        "5:13: defaults: timezone 'Mars/Phobos' is not known; use an IANA name, for example "
        "'Europe/Oslo' or 'UTC'",
        "10:5: nightly: there is no field 'queu'; did you mean 'queue'?",
        "13:12: both: it has both cron and every; keep one",
        "15:3: neither: it has no timetable; set cron (for example '0 2 * * *') or every (for "
        "example '15 minutes'), or once_at, solar, rrule or after",
        "17:3: 'nightly' is there twice, first in line 7",
        "19:3: 'a/b': a name has no slash, no control character and no space at its ends",
        "20:3: idle: it has no task; set task to a registered task's name (for example "
        "'tasks.maintenance.backup'), or job_policy to {template: NAME}",
        "21:34: after itself: after goes in a circle: after itself after after itself",
        "22:25: one: after goes in a circle: one after two after one",
        "24:9: list: it is [1], which is no mapping",
        "25:3: the key 7 is no text; put it in quotes",
    ]


@pytest.mark.parametrize(
    "written",
    [
        "task: ^5",
        "task: ^[a]",
        "task: ^' '",
        'task: ^"a\\0b"',
        f"task: ^{'x' * 256}",
        "launcher: ^a b",
        "every: ^soon",
        "every: ^0",
        "every: ^.inf",
        "every: ^true",
        "every: ^36501 days",
        "jitter: ^367 days",
        "cron: ^'@never'",
        "timezone: ^Mars/Phobos",
        "solar: ^moonrise 1 2",
        "rrule: ^BYDAY=MO",
        "once_at: ^tomorrow",
        "once_at: ^0001-01-01T00:00Z",
        "once_at: ^2026-01-31",
        "after_outcome: ^done",
        "after_match: ^both",
        "after: ^[]",
        "after: ^[a, 5]",
        "max_runs: ^0",
        "max_runs: ^1.5",
        "retry_factor: ^0.5",
        "retry_factor: ^.nan",
        "retry_cap: ^1 s",
        "enabled: ^off",
        "args: ^{a: 1}",
        "kwargs: ^[1]",
        "kwargs: ^{x: .nan}",
        "kwargs: {x: {y: 1, ^y: 2}}",
        "kwargs: {^1: x}",
        "kwargs: {x: ^!secret y}",
        "^crn: x",
        "^next_run: x",
        "^function: x",
        "^zzz: x",
        "^name: x",
    ],
)
def test_a_mistake_in_a_field_has_its_place(written: str) -> None:
    field = written.replace("^", "").split(":")[0]
    rest = "".join(
        f"    {key}: {value}\n"
        for key, value in (("task", "t"), ("every", "5"))
        if key != field and not (key == "every" and field in TIMETABLES)
    )
    text = f"schedules:\n  s:\n{rest}    {written.replace('^', '')}\n"
    assert places(text) == [f"{text.count(chr(10))}:{written.index('^') + 5}"]


def test_a_backslash_is_part_of_a_tasks_name() -> None:
    assert "task" in values("schedules:\n  s:\n    every: 5\n    task: 'a\\tb'\n")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "1:1"),
        ("- a\n", "1:1"),
        ("version: 1\n", "1:1"),
        ("version: true\nschedules: {}", "1:10"),
        ("namespace: a b\nschedules: {}", "1:12"),
        ("schedules:\n", "1:11"),
        ("schedulers: {}", "1:13"),
        ("defaults: 5\nschedules: {}", "1:11"),
        ("defaults: {cron: '@daily', every: 5}\nschedules: {}", "1:35"),
        ("schedules: [5]", "1:13"),
        ("schedules: [{task: t}]", "1:13"),
        ("schedules: {'': {}}", "1:13"),
        ("a: *nowhere", "1:4"),
        ("a: &x [*x]", "1:8"),
        ("schedules:\n  s:\n    cron: */5 * * * *\n", "3:12"),
        ("schedules:\n\ts: {}\n", "2:1"),
        ("schedules: {}\n---\na: 1\n", "2:1"),
        ("a: b\n  c\x00: d\n", "2:4"),
        ("a: " + "[" * 900, "1:104"),
    ],
)
def test_a_mistake_in_the_whole_has_its_place(text: str, place: str) -> None:
    assert places(text)[0] == place


def test_what_is_nested_deeper_than_libyaml_itself_allows_is_refused() -> None:
    """From 0.2.6 on it allows 1,000 levels, and reads ahead of what is asked of it."""
    assert places("a: " + "[" * 100000)[0] in ("1:104", "1:1003")


def test_what_is_not_yaml_is_told_how_to_write_it() -> None:
    assert mistakes("schedules:\n  s:\n    cron: */5 * * * *\n") == [
        "3:12: this is not YAML: did not find expected alphabetic or numeric character, while "
        "scanning an alias; put a value that begins with *, @, % or ` in quotes"
    ]
    [said] = mistakes("schedules:\n\ts: {}\n")
    assert said.endswith("; indent with spaces, not with tabs")


def test_aliases_don_t_make_a_file_that_never_ends() -> None:
    lines = ["x0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"x{n + 1}: &x{n + 1} [{', '.join([f'*x{n}'] * 10)}]" for n in range(9)]
    assert mistakes("\n".join(lines)) == ["7:5: it holds more than 5000000 values"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "1:1"),
        ('{"schedules": {},}', "1:18"),
        ('{"schedules": {}\n  "a": 1}', "2:3"),
        ("{'a': 1}", "1:2"),
        ('{"a" 1}', "1:6"),
        ('{"a": "b', "1:7"),
        ('{"a": "\\x"}', "1:8"),
        ('{"a": 01}', "1:8"),
        ('{"a": NaN}', "1:7"),
        (f"""{{"a": {"9" * 5000}}}""", "1:7"),
        ('{"schedules": {}} x', "1:19"),
        ('{"a": ' + "[" * 100000, "1:1"),
        ('{"schedules": {"s": {"task": "t",\n "every": 5,\n "task": "u"}}}', "3:2"),
        ('{"schedules": {"s": {"task": "t",\n "every": "x"}}}', "2:11"),
    ],
)
def test_a_mistake_in_json_has_its_place(text: str, place: str) -> None:
    assert places(text, is_json=True) == [place]


@pytest.mark.parametrize(
    "entry",
    [
        "function: ^maintenance.clean, interval_minutes: 5",
        "name: ^s, interval_minutes: 5",
        "function: ^5, interval_minutes: 5",
        "FUNCTION, trigger: ^interval, cron: '@daily'",
        "FUNCTION, trigger: ^cron, interval_minutes: 5",
        "FUNCTION, trigger: cron, cron: '@daily', interval_minutes: ^5",
        "FUNCTION, trigger: ^date, cron: '@daily'",
        "FUNCTION, name: ^s",
        "FUNCTION, interval_minutes: ^0",
        "FUNCTION, interval_minutes: 5, args: ^x",
        "FUNCTION, interval_minutes: 5, args: ^{x: '{{ nope }}'}",
        "FUNCTION, interval_minutes: 5, retry_on_failure: ^1",
        "FUNCTION, interval_minutes: 5, max_retries: ^1000",
        "FUNCTION, interval_minutes: 5, job_policy: {max_attempts: 2}, max_retries: ^3",
        "FUNCTION, interval_minutes: 5, timeout_seconds: ^0",
        "FUNCTION, interval_minutes: 5, ^kwargs: {}",
        "FUNCTION, interval_minutes: 5, ^intervall: 5",
    ],
)
def test_a_mistake_in_a_function_entry_has_its_place(entry: str) -> None:
    entry = entry.replace("FUNCTION", "function: maintenance.cleanup")
    name = "" if "name:" in entry else "name: s, "
    line = f"- {{{name}{entry}}}"
    text = f"schedulers:\n{line.replace('^', '')}\n"
    assert places(text, functions=FUNCTIONS) == [f"2:{line.index('^') + 1}"]


def test_a_mistake_in_a_function_entry_has_the_file_s_words() -> None:
    text = """\
schedulers:
- {name: a, function: maintenance.cleanup, cron: '@daily', interval_minutes: 5}
- {name: b, function: maintenance.cleanup, interval_minutes: 5, args: {x: '{{ nope }}'}}
- {name: c, function: maintenance.cleanup}
"""
    both, args, none = mistakes(text, functions=FUNCTIONS)
    assert both.endswith("it has both cron and interval_minutes; keep one")
    assert "b: args.x:" in args
    assert none.endswith("or interval_minutes")


def test_no_function_is_allowed_unless_it_is_named() -> None:
    assert [line.partition("; ")[2] for line in mistakes(SEEDS)] == [
        "pgbeat_allowed_functions has nothing"
    ] * 3


def test_a_mistake_in_the_defaults_is_told_once() -> None:
    text = """\
defaults: {retry_base: 2 h, starts_at: 2026-01-01, cron: '@daily', every: 5, task: t}
schedules:
  a: {}
  b: {retry_cap: 1 h}
  c: {retry_cap: 3 h, timezone: UTC, cron: '@hourly'}
"""
    assert mistakes(text, check=lambda d: [("task", "no such task")]) == [
        "1:24: defaults: retry_cap (1 hour) must not be below retry_base (2 hours)",
        "1:40: defaults: starts_at is 2026-01-01T00:00:00, and of no zone; add Z or an offset, "
        "such as +01:00, or set timezone",
        "1:75: defaults: it has both cron and every; keep one",
        "1:84: defaults: no such task",
        "4:18: b: retry_cap (1 hour) must not be below retry_base (2 hours)",
    ]


def test_names_are_unique_among_both_forms() -> None:
    text = "schedulers:\n- {name: s, function: maintenance.cleanup, cron: '@daily'}\n"
    text += "schedules:\n  s: {task: t, every: 5}\n"
    assert mistakes(text, functions=FUNCTIONS) == [
        "2:10: the name 's' is there twice, first in line 4"
    ]


def test_mistakes_in_calendars() -> None:
    text = """\
calendars:
  holidays:
    dates: [2026-13-01]
    only:
      weekdays: [someday]
    week: [mon]
  none: 5
  fine: {weekdays: [sat, sun]}
schedules: {}
"""
    found = mistakes(text)
    assert [line.partition("; ")[0] for line in found] == [
        "3:13: calendar 'holidays': dates: '2026-13-01' is not a date",
        "5:18: calendar 'holidays': only: weekdays: 'someday' is not a day of the week",
        "6:5: calendar 'holidays': there is no key 'week'",
        "7:9: none: it is 5, which is no mapping",
    ]


def test_what_the_caller_knows_is_listed_with_the_rest() -> None:
    text = """\
schedules:
  s: {task: t, cron: x}
  u: {task: t, every: 5, queue: 7}
"""
    found = mistakes(text, check=lambda d: [("task", "no such task"), ("queue", "no queue")])
    assert [line for line in found if "cron" not in line] == [
        "2:3: s: no queue",
        "2:13: s: no such task",
        "3:13: u: no such task",
        "3:33: u: queue is 7, which is no text; put it in quotes '7'",
    ]


def test_the_parser_without_libyaml_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = [loaded(text, functions=FUNCTIONS) for text in (EVERYTHING, SEEDS)]
    wrong = mistakes(WRONG)
    monkeypatch.setattr(yaml_documents, "_Parser", yaml_documents._SlowParser)
    assert [loaded(text, functions=FUNCTIONS) for text in (EVERYTHING, SEEDS)] == quick
    assert mistakes(WRONG) == wrong


def test_the_examples_of_the_docs_are_files() -> None:
    docs = (ROOT / "docs" / "reference" / "files.md").read_text()
    examples = [part.partition("```")[0] for part in docs.split("```yaml\n")[1:]]
    first, functions, _ = examples
    assert list(loaded(first).definitions) == ["nightly", "prices"]
    assert list(loaded(first).sections) == ["calendars", "lanes", "webhooks"]
    assert len(loaded(functions, functions=FUNCTIONS).definitions) == 1


# -- the setting -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "functions"),
    [
        ({"a.b": "tasks.c"}, {"a.b": "tasks.c"}),
        (["a.b", "c"], {"a.b": "a.b", "c": "c"}),
        (("a.b",), {"a.b": "a.b"}),
        ("a.b = tasks.c, d", {"a.b": "tasks.c", "d": "d"}),
        ('{"a.b": "tasks.c"}', {"a.b": "tasks.c"}),
        ('["a.b"]', {"a.b": "a.b"}),
        ({}, {}),
    ],
)
def test_functions_that_are_allowed(setting: Any, functions: dict[str, str]) -> None:
    conf = {"pgbeat_url": "postgresql://h/d", "pgbeat_allowed_functions": setting}
    assert Settings.load(conf, {}).allowed_functions == functions
    if isinstance(setting, str):
        environ = {"PGBEAT_URL": "postgresql://h/d", "PGBEAT_ALLOWED_FUNCTIONS": setting}
        assert Settings.load({}, environ).allowed_functions == functions


@pytest.mark.parametrize("setting", [5, {"a": 5}, {"a": ""}, [5], '{"a": null}', {5: "a"}])
def test_functions_that_are_none(setting: Any) -> None:
    conf = {"pgbeat_url": "postgresql://h/d", "pgbeat_allowed_functions": setting}
    with pytest.raises(ConfigError) as raised:
        Settings.load(conf, {})
    assert [each.field for each in raised.value.problems] == ["pgbeat_allowed_functions"]


# -- kinds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (timedelta(0), "0 seconds"),
        (timedelta(seconds=1), "1 second"),
        (timedelta(microseconds=1), "0.000001 seconds"),
        (timedelta(seconds=90), "1 minute 30 seconds"),
        (timedelta(minutes=15), "15 minutes"),
        (timedelta(hours=25, seconds=0.5), "1 day 1 hour 0.5 seconds"),
        (timedelta(days=7), "1 week"),
        (timedelta(days=10), "10 days"),
        (timedelta(days=7, minutes=1), "7 days 1 minute"),
        (timedelta(days=36_500), "36500 days"),
    ],
)
def test_a_length_of_time_in_words(length: timedelta, words: str) -> None:
    kind = Duration("1 hour")
    assert kind.plain(length) == words
    assert kind.read(words) == length


def test_any_length_of_time_comes_back() -> None:
    kind, chance = Duration("1 hour"), random.Random(4)  # noqa: S311
    for _ in range(2000):
        micros = chance.randrange(10 ** chance.randrange(1, 16))
        length = (
            timedelta(microseconds=micros) // chance.choice([1, 10**6]) * chance.choice([1, 60])
        )
        if length <= kind.longest:
            assert kind.read(kind.plain(length)) == length


# -- how jobs are made -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("{}", {}),
        ("{lane: null}", {}),
        ("{template: x, priority: 0}", {"template": "x", "priority": 0}),
        ("{retry_base: 90, retry_cap: 2 hours}", {"retry_base": 90, "retry_cap": 7200}),
        ("{retry_base: 0.5}", {"retry_base": 0.5}),
        ("{tags: [a, b, a]}", {"tags": ["a", "b"]}),
        ("{resources: {gpu: 1.0, gb: 0.5}}", {"resources": {"gpu": 1, "gb": 0.5}}),
        ("{unique: false, requires_approval: true}", {"unique": False, "requires_approval": True}),
    ],
)
def test_a_job_policy(written: str, kept: dict[str, Any]) -> None:
    text = f"schedules: {{s: {{task: t, every: 5, job_policy: {written}}}}}"
    assert loaded(text).definitions["s"].values["job_policy"] == kept


def test_every_mistake_in_a_job_policy_has_its_place() -> None:
    text = """\
schedules:
  s:
    task: t
    every: 5
    job_policy:
      lan: gpu
      priority: high
      retry_base: 2 hours
      retry_cap: 1 hour
      unique_for: soon
      tags: one
      resources: {gpu: -1}
  u: {task: t, every: 5, job_policy: [1]}
  v: {task: t, every: 5, lane: gpu}
  w: {task: t, every: 5, job_policy: {lane: "a\\0"}}
"""
    assert mistakes(text) == [
        "6:7: s: job_policy: 'lan' is not a key of it; did you mean 'lane'?",
        "7:17: s: job_policy: priority: 'high' is not a whole number",
        "9:18: s: job_policy: retry_cap: must not be below retry_base",
        "10:19: s: job_policy: unique_for: 'soon': it is not a length of time; write seconds, or "
        "for example '15 minutes', '1h 30m' or '2 days'",
        "11:13: s: job_policy: tags: must be a list of names, got 'one'",
        '12:18: s: job_policy: resources: must be an object of amounts such as {"gpu": 1}, '
        "got {'gpu': -1}",
        "13:38: u: job_policy is [1]; it must be a mapping, for example "
        '{"lane": "gpu", "max_attempts": 5}',
        "14:26: v: there is no field 'lane'; write it in job_policy: {lane: …}",
        "15:38: w: job_policy holds what can't be kept as JSON: it holds a character that Postgres "
        "can't keep (NUL or half a pair)",
    ]


def test_a_template_says_what_is_launched() -> None:
    found = loaded("schedules: {s: {every: 5, job_policy: {template: x}}}")
    assert found.definitions["s"].values["task"] is None
    assert loaded("defaults: {job_policy: {template: x}}\nschedules: {s: {every: 5}}").definitions
    [said] = mistakes("schedules: {s: {every: 5, job_policy: {lane: gpu}}}")
    assert said.startswith("1:13: s: it has no task; set task to a registered task's name")
    # Of a policy that can't be read it isn't said, too, that it names no template.
    [said] = mistakes("schedules: {s: {every: 5, job_policy: {templat: x}}}")
    assert said == "1:40: s: job_policy: 'templat' is not a key of it; did you mean 'template'?"


# -- the schema ------------------------------------------------------------------------------------


def test_the_schema_in_the_docs_is_the_one_that_is_printed() -> None:
    checked_in = ROOT / "docs" / "schedules.schema.json"
    assert checked_in.read_text() == schema(), "run `pgbeat sync --schema` into it"


@pytest.fixture(scope="module")
def is_valid() -> Callable[[str], bool]:
    """Whether a YAML file is valid by the schema."""
    jsonschema: Any = pytest.importorskip("jsonschema")
    found = json.loads(schema())
    jsonschema.Draft7Validator.check_schema(found)
    validator = jsonschema.Draft7Validator(found)

    def check(text: str) -> bool:
        from pgbeat.schedules.files.documents import Notes

        return bool(validator.is_valid(yaml_documents.parse(text, Notes()).plain()))

    return check


@pytest.mark.parametrize(
    "text",
    [
        EVERYTHING,
        SEEDS,
        "schedules: {}",
        "schedulers: []\nversion: 1\nnamespace: a-b\n",
        "x-any: {a: 1}\nschedules:\n- {name: a b, task: t, every: 5, queue: null}\n",
        "$schema: x\ndefaults: {every: 5 min}\ncalendars: {c: {weekdays: [sat], only: {windows: "
        "[{from: '09:00', to: '17:00'}]}}}\nschedules: {s: {task: t, solar: sunset 1 2}}",
        "lanes: {a: {max_running: null}, b: {rate: 1/s}}\ntemplates: {t: {task: t}}\n"
        "webhooks: {w: {url: 'https://a.b', events: [all]}}",
        "schedules: {s: {every: 5, job_policy: {template: x, lane: null, retry_base: 1 min, "
        "retry_cap: null, tags: [a], resources: {gpu: 0.5}, unique: true}}, "
        "u: {task: t, every: 5, job_policy: }}",
    ],
)
def test_what_is_a_file_is_valid_by_the_schema(is_valid: Callable[[str], bool], text: str) -> None:
    loaded(text, functions=FUNCTIONS)
    assert is_valid(text)


@pytest.mark.parametrize(
    "text",
    [
        WRONG.replace("  7:", "  '7':"),
        "version: 1",
        "[]",
        "schedulers: {}",
        "schedules: {s: {task: 5, every: 5}}",
        "schedules: {s: {task: t, evry: 5}}",
        "schedules: {s: {task: t, every: 0}}",
        "schedules: {s: {task: t, every: 5, overlap: never}}",
        "schedules: {a/b: {}}",
        "schedules: {s: {task: t, every: 5, max_runs: 0}}",
        "schedules: [{task: t, every: 5}]",
        "schedules: {s: {task: t, every: 5, enabled: 'no'}}",
        "schedules: {}\nnamespace: a b",
        "schedulers: [{name: s, function: f, interval_minutes: 0}]",
        "schedulers: [{name: s, function: f, interval_minutes: 5, task: t}]",
        "schedules: {}\nfoo: 1",
        "schedules: {}\ncalendars: {c: {week: 1}}",
        "lanes: {gpu: {max_running: -1}}",
        "templates: {t: {task: t, lane: gpu}}",
        "webhooks: {w: {url: 'https://a.b', events: []}}",
        "schedules: {s: {task: t, every: 5, job_policy: {lan: x}}}",
        "schedules: {s: {task: t, every: 5, job_policy: {resources: {gpu: 0}}}}",
    ],
)
def test_what_is_no_file_is_not_valid(is_valid: Callable[[str], bool], text: str) -> None:
    with pytest.raises(InvalidFile):
        loaded(text.replace("a/b: {}", "a/b: {task: t, every: 5}"), functions={"f": "f"})
    assert not is_valid(text)
