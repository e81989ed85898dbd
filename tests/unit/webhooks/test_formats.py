"""Events in the formats of chat rooms and services: what each of them takes."""

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from pgbeat.webhooks import formats
from pgbeat.webhooks.events import EVENTS

CONSOLE = "https://pgbeat.example.com/"
EVIL = "<!channel> @everyone [x](http://evil) " + "é" * 5000
JOB = {"id": "5e1d", "task": "shop.charge", "schedule": "nightly/€", "attempt": 3}
EVENT: dict[str, dict[str, Any]] = {
    "job.failed": {**JOB, "error": EVIL, "worker": "w1"},
    "job.late": {**JOB, "schedule": None, "deadline": "start", "error": None},
    "job.run.completed": {"id": "8f0c", "job_id": "5e1d", "job": JOB, "error": None},
    "job.run.failed": {"id": "8f0c", "job_id": "5e1d", "job": JOB, "error": EVIL},
    "job.run.skipped": {"id": "8f0c", "job_id": "5e1d", "job": JOB},
    "group.ended": {"id": "77", "name": None, "state": "completed", "jobs": {"completed": 2}},
    "schedule.disabled": {"id": 1, "name": "nightly", "disabled_reason": "5 failures"},
    "schedule.paused": {"id": 1, "name": "nightly", "task": "t", "last_job_error": EVIL},
    "schedule.stale": {"id": 1, "name": "nightly", "fresh_within": 3600.0},
    "schedule.recovered": {"id": 1, "name": "nightly", "last_completed_at": "x"},
    "tick.failed": {"schedule": "nightly", "task": "t", "due_at": "x", "error": EVIL},
    "tick.skipped": {"schedule": "nightly", "reason": "nothing to do"},
    "webhook.test": {"webhook": "ops", "namespace": "default"},
}
KEYS = {"pagerduty": "0123456789abcdef0123456789ABCDEF", "opsgenie": "x" * 36}


def text(most: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": most}


def fields(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": required | (optional or {}),
        "additionalProperties": False,
    }


FACTS = {"type": "object", "additionalProperties": text(1000)}
RUN = fields(
    {"type": {"const": "TextRun"}, "text": text(2000)}, {"weight": {}, "size": {}, "color": {}}
)
CARD = fields(
    {
        "$schema": {},
        "type": {"const": "AdaptiveCard"},
        "version": {"enum": ["1.2", "1.3", "1.4", "1.5"]},
        "body": {
            "type": "array",
            "minItems": 1,
            "items": fields(
                {"type": {"const": "RichTextBlock"}, "inlines": {"type": "array", "items": RUN}}
            ),
        },
    },
    {
        "actions": {
            "items": fields({"type": {"const": "Action.OpenUrl"}, "title": text(50), "url": {}})
        }
    },
)
#: What the receivers' documents say of a body, with their limits.
SCHEMAS = {
    "slack": fields(
        {
            "text": text(40_000),
            "blocks": {
                "maxItems": 50,
                "items": fields(
                    {
                        "type": {"const": "section"},
                        "text": fields({"type": {"const": "mrkdwn"}, "text": text(3000)}),
                    }
                ),
            },
        }
    ),
    "teams": fields(
        {
            "type": {"const": "message"},
            "attachments": {
                "items": fields(
                    {
                        "contentType": {"const": "application/vnd.microsoft.card.adaptive"},
                        "content": CARD,
                    }
                )
            },
        }
    ),
    "discord": fields(
        {
            "allowed_mentions": {"const": {"parse": []}},
            "embeds": {
                "maxItems": 10,
                "items": fields(
                    {
                        "title": text(256),
                        "color": {"type": "integer", "minimum": 0, "maximum": 0xFFFFFF},
                        "fields": {
                            "maxItems": 25,
                            "items": fields({"name": text(256), "value": text(1024)}),
                        },
                    },
                    {"timestamp": text(40), "url": text(2048)},
                ),
            },
        }
    ),
    "pagerduty": fields(
        {
            "routing_key": {"type": "string", "pattern": "^[0-9A-Za-z]{32}$"},
            "event_action": {"enum": ["trigger", "acknowledge", "resolve"]},
            "dedup_key": text(255),
            "client": text(255),
            "payload": fields(
                {
                    "summary": text(1024),
                    "source": text(255),
                    "severity": {"enum": ["critical", "error", "warning", "info"]},
                    "custom_details": FACTS,
                },
                {"timestamp": text(40)},
            ),
        },
        {"links": {"items": fields({"href": text(2048), "text": text(255)})}},
    ),
    "opsgenie": fields(
        {
            "message": text(130),
            "alias": text(512),
            "description": {"type": "string", "maxLength": 15_000},
            "details": FACTS,
            "source": text(100),
            "priority": {"enum": ["P1", "P2", "P3", "P4", "P5"]},
        }
    ),
}


def body(format: str, kind: str, console: str = CONSOLE) -> tuple[dict[str, Any], dict[str, str]]:
    event = {"type": kind, "timestamp": "2026-11-21T12:56:51.271472Z", "data": EVENT[kind]}
    key = KEYS.get(format, "whsec_x")
    said, headers = formats.request(format, event, secret=key, namespace="default", console=console)
    return json.loads(said), headers


@pytest.mark.parametrize("format", SCHEMAS)
@pytest.mark.parametrize("console", ["", CONSOLE])
def test_each_event_is_what_the_receiver_takes(format: str, console: str) -> None:
    assert set(EVENT) == {*EVENTS, "webhook.test"}
    for kind in EVENT:
        said, headers = body(format, kind, console)
        jsonschema.validate(said, SCHEMAS[format])
        assert ("pgbeat.example.com//" in str(said)) is False
        assert bool(headers) is (format == "opsgenie")
    assert set(SCHEMAS) == set(formats.FORMATS) - {"standard"}


def test_nobody_is_mentioned_and_nothing_is_a_link() -> None:
    said, _ = body("slack", "job.failed")
    [block] = said["blocks"]
    assert "&lt;!channel&gt;" in block["text"]["text"]
    assert "<!channel>" not in str(said)


def test_words_of_an_event() -> None:
    event = {"type": "job.failed", "timestamp": "t", "data": EVENT["job.failed"] | {"error": "no"}}
    assert formats.notice(event, "ns", CONSOLE) == formats.Notice(
        "Schedule 'nightly/€' failed",
        {"Error": "no", "Schedule": "nightly/€", "Task": "shop.charge", "Worker": "w1"},
        "error",
        "t",
        "pgbeat:ns:Schedule 'nightly/€'",
        "https://pgbeat.example.com/console/jobs/5e1d",
    )
    late = {"type": "job.late", "data": EVENT["job.late"]}
    assert formats.notice(late, "ns", "").title == "shop.charge is late: it missed its start"
    assert formats.notice(late, "ns", "").link == ""
    off = {"type": "schedule.disabled", "data": {"name": "a/b"}}
    assert formats.notice(off, "ns", CONSOLE).link.endswith("/console/schedules/a%2Fb")


@pytest.mark.parametrize(
    ("format", "secret", "code"),
    [
        ("slack", None, None),
        ("slack", "x", "conflict"),
        ("pagerduty", KEYS["pagerduty"], None),
        ("pagerduty", None, "required"),
        ("pagerduty", "short", "malformed"),
        ("opsgenie", KEYS["opsgenie"], None),
        ("opsgenie", "a b", "malformed"),
    ],
)
def test_keys(format: str, secret: str | None, code: str | None) -> None:
    found = formats.check_key(format, secret)
    assert [problem.code for problem in found] == ([code] if code else [])
    assert secret is None or secret not in str(found) or len(secret) < 2
