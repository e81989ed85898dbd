"""What files say of lanes, templates and webhooks, and every mistake with its line."""

import json
from typing import Any

import pytest

from pgbeat.errors import InvalidSchedule
from pgbeat.schedules.files import File, read
from pgbeat.schedules.files.checks import launchable
from pgbeat.schedules.files.nouns import nouns
from pgbeat.schedules.files.schema import schema

ENVIRON = {"ROOM_URL": "https://hooks.slack.com/1", "PAGER_KEY": "a" * 32, "BAD": "ftp://x"}


def loaded(text: str, *, private: bool = False) -> File:
    return read(text, "f.yaml", nouns=nouns(ENVIRON, private=private), check=launchable(None))


def plain(text: str, section: str) -> Any:
    """The only definition of a section, as an export writes it."""
    file = loaded(text)
    file.require_valid()
    found = file.sections[section]
    (definition,) = found.definitions.values()
    return found.noun.plain(definition.values)


def mistakes(text: str) -> list[str]:
    """The mistakes, each `line:column: sentence`."""
    return [f"{m.line}:{m.column}: {m.message}" for m in sorted(loaded(text).mistakes)]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("max_running: 2", {"max_running": 2}),
        ("max_running: null", {"max_running": None}),
        ("max_running: null, fair_by: task", {"max_running": None, "fair_by": "task"}),
        ("fair_by: kwargs.a, max_per_key: 0", {"fair_by": "kwargs.a", "max_per_key": 0}),
        ("rate: 10 per minute", {"rate": "10/minute"}),
        ("rate: 3/s, rate_key: tag", {"rate": "3/second", "rate_key": "tag"}),
        ("rate: 100/15 min, rate_unit: t", {"rate": "100/15 minutes", "rate_unit": "t"}),
        ("rate: 1/0.000001 s", {"rate": "1/0.000001 seconds"}),
        (
            "policy: tags, options: {heavy: 1}, max_running: 3",
            {"max_running": 3, "policy": "tags", "options": {"heavy": 1}},
        ),
        # One of the app's own, which may be unknown here.
        ("policy: Quiet, options: {most: 1}", {"policy": "Quiet", "options": {"most": 1}}),
    ],
)
def test_lanes(written: str, expected: dict[str, Any]) -> None:
    assert plain(f"lanes: {{gpu: {{{written}}}}}", "lanes") == expected


def test_templates() -> None:
    text = "templates: {t: {task: a.b, args: [1], job_policy: {retry_base: 60}, description: x}}"
    assert plain(text, "templates") == {
        "task": "a.b",
        "args": [1],
        "job_policy": {"retry_base": "1 minute"},
        "description": "x",
    }


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("url: 'https://a.b', events: [all]", {"url": "https://a.b", "events": ["all"]}),
        (
            "url_env: ROOM_URL, format: slack, events: [tick.failed, job.failed, tick.failed]",
            {"url_env": "ROOM_URL", "format": "slack", "events": ["job.failed", "tick.failed"]},
        ),
        (
            "url: 'https://a.b', format: pagerduty, secret_env: PAGER_KEY, events: [job.late], "
            "enabled: false",
            {
                "url": "https://a.b",
                "events": ["job.late"],
                "format": "pagerduty",
                "secret_env": "PAGER_KEY",
                "enabled": False,
            },
        ),
        # A variable that isn't set, which may be right where the file is only checked.
        ("url_env: NONE, events: [all]", {"url_env": "NONE", "events": ["all"]}),
    ],
)
def test_webhooks(written: str, expected: dict[str, Any]) -> None:
    assert plain(f"webhooks: {{w: {{{written}}}}}", "webhooks") == expected


def test_a_file_without_schedules_leaves_those_alone() -> None:
    assert not loaded("lanes: {}").has_schedules
    assert loaded("schedules: {}\nlanes: {}").has_schedules
    assert loaded("schedules: {}").sections == {}
    assert mistakes("version: 1") == ["1:1: it has no schedules; write `schedules: {}` for none"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lanes: [gpu]", '1:8: lanes is ["gpu"]; it is a mapping of names to definitions'),
        ("lanes:\n  gpu: 2", "2:8: gpu: it is 2, which is no mapping"),
        ("lanes:\n  gpu:", "2:7: gpu: it is null, which is no mapping"),
        ("lanes:\n  a/b: {}", "2:3: 'a/b': a name has no slash"),
        ("lanes:\n  gpu: {max_running: 1}\n  gpu: {max_running: 2}", "3:3: 'gpu' is there twice"),
        ("lane: {}\nschedules: {}", "1:1: a file has no 'lane' at its top; did you mean 'lanes'?"),
        (
            "lanes:\n  gpu: {max_run: 2}",
            "2:9: lane 'gpu': there is no field 'max_run'; did you mean 'max_running'?",
        ),
        ("lanes:\n  gpu: {paused: true}", "2:9: lane 'gpu': there is no field 'paused'"),
        (
            "lanes:\n  gpu: {max_running: two}",
            "2:22: lane 'gpu': max_running is 'two', which is no whole number",
        ),
        ("lanes:\n  gpu: {}", "2:3: lane 'gpu': a new lane needs a limit"),
        (
            "lanes:\n  gpu: {max_running: 1, rate_key: task}",
            "2:35: lane 'gpu': there is a key for the rate, but no rate",
        ),
        (
            "lanes:\n  gpu: {policy: tags, options: {heavy: many}}",
            "2:32: lane 'gpu': policy 'tags'",
        ),
        ("templates:\n  t: {queue: q}", "2:3: template 't': task must name a registered task"),
        (
            "templates:\n  t: {task: a, job_policy: {lan: x}}",
            "2:29: template 't': job_policy: 'lan' is not a key of it; did you mean 'lane'?",
        ),
        (
            "templates:\n  t: {task: a, lane: x}",
            "2:16: template 't': there is no field 'lane'; wri",
        ),
        ("templates:\n  t: {task: a, args: ['{{ x }}']}", "2:22: template 't': "),
        (
            "webhooks:\n  w: {url: 'https://a.b', events: [job.failed, job.fail]}",
            "2:35: webhook 'w': events: there is no event 'job.fail'; did you mean 'job.failed'?",
        ),
        (
            "webhooks:\n  w: {url: 'https://a.b', events: job.failed}",
            "2:35: webhook 'w': events is",
        ),
        ("webhooks:\n  w: {events: [all]}", "2:3: webhook 'w': url is missing; set it, or url_env"),
        (
            "webhooks:\n  w: {events: [all], url: 'https://a.b', url_env: X}",
            "2:51: webhook 'w': url and url_env exclude each other",
        ),
        (
            "webhooks:\n  w: {events: [all], url: 'http://10.0.0.1'}",
            "2:27: webhook 'w': url: 10.0.0",
        ),
        ("webhooks:\n  w: {events: [all], url_env: BAD}", "2:31: webhook 'w': url: it must begin"),
        (
            "webhooks:\n  w: {events: [all], url: 'https://a.b', secret: whsec_x}",
            "2:42: webhook 'w': there is no field 'secret'; did you mean 'secret_env'?",
        ),
        (
            "webhooks:\n  w: {events: [all], url: 'https://a.b', format: pagerduty}",
            "2:3: webhook 'w': secret: pagerduty needs the integration key of an Events API v2 "
            "service; name the environment variable that has it: secret_env",
        ),
    ],
)
def test_mistakes(text: str, expected: str) -> None:
    (mistake,) = mistakes(text)
    assert mistake.startswith(expected), mistake
    assert "whsec_x" not in mistake


def test_all_mistakes_are_told_at_once() -> None:
    text = (
        "lanes: {a: {max_running: x, rat: 1}}\nwebhooks: {w: {events: [x, y]}}\nschedules: {s: 5}"
    )
    assert [mistake.partition(" ")[0] for mistake in mistakes(text)] == [
        "1:26:", "1:29:", "2:12:", "2:24:", "2:24:", "3:16:",
    ]  # fmt: skip
    with pytest.raises(InvalidSchedule, match=r"f\.yaml has 6 mistakes; nothing is written"):
        loaded(text).require_valid()


def test_private_addresses_where_the_settings_allow_them() -> None:
    text = "webhooks: {w: {url: 'http://10.0.0.1/', events: [all]}}"
    assert not loaded(text, private=True).mistakes


def test_the_schema_knows_the_fields() -> None:
    definitions = json.loads(schema())["definitions"]
    for noun in nouns({}):
        if noun.fields is not None:
            assert definitions[noun.name]["properties"].keys() == noun.fields.keys()
            assert definitions[noun.name]["additionalProperties"] is False
