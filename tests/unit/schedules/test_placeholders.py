"""Placeholders: a small grammar, checked when a row is written, filled in for each due time."""

from datetime import UTC, datetime
from typing import Any

import pytest

from pgbeat.errors import InvalidPlaceholder
from pgbeat.jobs.preparing.placeholders import Facts, check, escape, fill, in_use
from tests.support.problems import raises

FACTS = Facts(
    datetime(2026, 3, 29, 23, 30, tzinfo=UTC),
    "Europe/Oslo",  # two hours ahead from that morning on
    "a9f3548e-aea4-5160-b886-692061c99fec",
    "nightly",
    "timetable",
    datetime(2026, 3, 28, 23, 30, tzinfo=UTC),
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ due_at }}", "2026-03-30T01:30:00+02:00"),
        ("{{ due_at | timezone('UTC') | date }}", "2026-03-29"),
        ("{{ due_at | timestamp }}", 1774827000),
        ("{{ due_at | format('%Y/%m/%d') }}", "2026/03/30"),
        ('{{ due_at | format("%Hh") }}', "01h"),
        ("{{ interval_start | date }}", "2026-03-29"),
        ("{{ interval_end | date }}", "2026-03-30"),
        # That day has 23 hours: whole days go by the wall clock, anything else by elapsed time.
        ("{{ due_at | minus('1 day') | iso }}", "2026-03-29T01:30:00+01:00"),
        ("{{ due_at | minus('23 h') | iso }}", "2026-03-29T01:30:00+01:00"),
        ("{{ due_at | minus('25 h') | iso }}", "2026-03-28T23:30:00+01:00"),
        ("{{ due_at | plus('90 minutes') | time }}", "03:00:00"),
        ("{{ schedule }}", "nightly"),
        ("{{ trigger | upper }}", "TIMETABLE"),
        ("{{ job_id }}", FACTS.job_id),
        ("s3://b/{{ due_at | date }}/{{ schedule }}.csv", "s3://b/2026-03-30/nightly.csv"),
        ("{{ '{{' }} name }}", "{{ name }}"),
        ("no braces } at all {", "no braces } at all {"),
        ("{{ '}}' }}", "}}"),
    ],
)
def test_what_a_placeholder_stands_for(text: str, value: Any) -> None:
    check([text], {})
    assert fill(text, FACTS) == value


def test_placeholders_anywhere_in_a_value() -> None:
    value = {
        "days": ["{{ due_at | date }}", 5, None, True],
        "{{ key }}": {"deep": "{{ schedule }}"},
    }
    assert fill(value, FACTS) == {
        "days": ["2026-03-30", 5, None, True],
        "{{ key }}": {"deep": "nightly"},
    }
    assert in_use(value)
    assert not in_use([{"a": "{ b }"}, 5, None])


def test_what_is_not_known() -> None:
    facts = FACTS._replace(interval_start=None)
    assert fill("{{ interval_start | date }}", facts) is None
    assert fill("{{ interval_start | date | default('begin') }}", facts) == "begin"
    assert fill("since {{ interval_start | date | default('begin') }}", facts) == "since begin"
    with pytest.raises(InvalidPlaceholder) as raised:
        fill({"a": ["since {{ interval_start | date }}"]}, facts, "kwargs")
    assert raised.value.field == "kwargs.a[0]"


@pytest.mark.parametrize(
    "text",
    [
        "{{ due }}",
        "{{ }}",
        "{{ due_at",
        "{{ due_at | }}",
        "{{ due_at date }}",
        "{{ due_at | format }}",
        "{{ due_at | format('%A') }}",
        "{{ due_at | date('x') }}",
        "{{ due_at | date | time }}",
        "{{ schedule | date }}",
        "{{ due_at | plus('soon') }}",
        "{{ due_at | timezone('Mars') }}",
        "{{ due_at | plus(1) }}",
        "{{ due_at.year }}",
        "{{ __import__('os') }}",
    ],
)
def test_what_is_no_placeholder(text: str) -> None:
    with raises(InvalidPlaceholder, ("kwargs.a[0]", "malformed"), ("kwargs.b", "malformed")):
        check([], {"a": [text], "b": "{{ also }}"})
    with pytest.raises(InvalidPlaceholder):
        fill(text, FACTS)


@pytest.mark.parametrize("value", ["{{ name }}", "{{{", "a {{ b", ["{{", {"k": "{{ due_at }}"}], 5])
def test_what_is_escaped_comes_out_as_it_was(value: Any) -> None:
    check([escape(value)], {})
    assert fill(escape(value), FACTS) == value


def test_a_time_at_the_end_of_the_calendar() -> None:
    facts = FACTS._replace(due_at=datetime.max.replace(tzinfo=UTC))
    with pytest.raises(InvalidPlaceholder):
        fill("{{ due_at | timezone('UTC') | plus('2 days') }}", facts)


@pytest.mark.parametrize("text", ["{{ due_at }}", "plain"])
def test_however_deep_they_are(text: str) -> None:
    value: Any = text
    for _ in range(10_000):
        value = [{"a": value}]
    assert in_use(value) == ("{{" in text)
