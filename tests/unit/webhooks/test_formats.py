"""Events in the formats of chat rooms and services: what each of them takes."""

import json
from typing import Any
from urllib.parse import unquote

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
    "job.recovered": {**JOB, "schedule": None, "failures": 3, "failing_since": "x"},
    "group.ended": {"id": "77", "name": None, "state": "completed", "jobs": {"completed": 2}},
    "schedule.disabled": {"id": 1, "name": "nightly", "disabled_reason": "5 failures"},
    "schedule.paused": {"id": 1, "name": "nightly", "task": "t", "last_job_error": EVIL},
    "schedule.stale": {"id": 1, "name": "nightly", "fresh_within": 3600.0},
    "schedule.recovered": {"id": 1, "name": "nightly/€", "failures": 1, "failing_since": "x"},
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
                        "text": fields(
                            {
                                "type": {"const": "mrkdwn"},
                                "text": text(3000),
                                "verbatim": {"const": True},
                            }
                        ),
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
            "event_action": {"const": "trigger"},
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

#: The same of what ends an incident: "resolve" of PagerDuty's Events API v2, and "Close Alert" of
#: Opsgenie's Alert API.
ENDS = {
    "pagerduty": fields(
        {
            "routing_key": {"type": "string", "pattern": "^[0-9A-Za-z]{32}$"},
            "event_action": {"const": "resolve"},
            "dedup_key": text(255),
        }
    ),
    "opsgenie": fields({"source": text(100), "note": text(25_000)}),
}
URL = "https://api.opsgenie.com/v2/alerts"


def request(
    format: str, kind: str, console: str = CONSOLE, **more: Any
) -> tuple[str, dict[str, str], dict[str, Any]]:
    event = {"type": kind, "timestamp": "2026-11-21T12:56:51.271472Z", "data": EVENT[kind]} | more
    key = KEYS.get(format, "whsec_x")
    url, headers, said = formats.request(
        format, event, url=URL, secret=key, namespace="default", console=console
    )
    return url, headers, json.loads(said)


@pytest.mark.parametrize("format", SCHEMAS)
@pytest.mark.parametrize("console", ["", CONSOLE])
def test_each_event_is_what_the_receiver_takes(format: str, console: str) -> None:
    assert set(EVENT) == {*EVENTS, "webhook.test"}
    for kind in EVENT:
        url, headers, said = request(format, kind, console)
        is_end = format in ENDS and kind in formats.RECOVERED
        jsonschema.validate(said, (ENDS if is_end else SCHEMAS)[format])
        assert ("pgbeat.example.com//" in str(said)) is False
        assert (url == URL) is not (is_end and format == "opsgenie")
        assert bool(headers) is (format == "opsgenie")
    assert set(SCHEMAS) == set(formats.FORMATS) - {"standard"}


def test_nobody_is_mentioned_and_nothing_is_a_link() -> None:
    _, _, said = request("slack", "job.failed")
    [block] = said["blocks"]
    assert "&lt;!channel&gt;" in block["text"]["text"]
    assert "<!channel>" not in str(said)


#: The worst that whoever names schedules and tasks, or raises errors, can send.
WORST = "\\*[a](https://evil)*&<!here>@everyone\n#" + "\N{FIRE}" * 5000
#: Bytes of a message that Teams takes; characters of all of an embed that Discord takes.
TEAMS, DISCORD = 28_000, 6000


@pytest.mark.parametrize("format", SCHEMAS)
def test_the_longest_texts_fit(format: str) -> None:
    names = ("error", "reason", "schedule", "task", "due_at", "worker", "owner")
    data = {"id": "5e1d", "failures": 7, "failing_since": "x", **dict.fromkeys(names, WORST)}
    for kind in ("job.failed", "schedule.recovered"):
        event = {"type": kind, "timestamp": "2026-11-21T12:56:51.271472Z", "data": data}
        _, _, sent = formats.request(
            format,
            event,
            url=URL,
            secret=KEYS.get(format, "x"),
            namespace="n" * 63,
            console=CONSOLE,
        )
        said = json.loads(sent)
        is_end = format in ENDS and kind in formats.RECOVERED
        jsonschema.validate(said, (ENDS if is_end else SCHEMAS)[format])
        if format == "teams":
            assert len(sent) < TEAMS
        elif format == "discord":
            [embed] = said["embeds"]
            texts = [
                embed["title"],
                *(each for field in embed["fields"] for each in field.values()),
            ]
            assert sum(map(len, texts)) < DISCORD
        elif format == "slack" and kind == "job.failed":
            link = f"\n<{CONSOLE}console/jobs/5e1d|Open in the console>"
            assert said["blocks"][0]["text"]["text"].endswith(link)


def test_nothing_is_markdown_in_discord_and_titles_have_one_line() -> None:
    data = {"task": "a\n*b*", "error": "[x](https://evil)\n`c`"}
    notice = formats.notice({"type": "job.failed", "data": data}, "default", "")
    assert notice.title == "a *b* failed"
    _, _, said = request("discord", "job.failed", data=data)
    [embed] = said["embeds"]
    assert embed["title"] == r"a \*b\* failed"
    assert embed["fields"][0]["value"] == "\\[x\\](https://evil)\n\\`c\\`"


@pytest.mark.parametrize("format", ENDS)
def test_incidents_with_long_names_have_keys_of_their_own(format: str) -> None:
    keys = set()
    for task in ("t" * 600 + "a", "t" * 600 + "b"):
        ours = {}
        for kind in ("job.failed", "job.recovered"):
            url, _, said = request(format, kind, data={"task": task})
            alias = unquote(url.removeprefix(f"{URL}/").partition("/")[0])
            ours[kind] = said.get("dedup_key") or said.get("alias") or alias
        assert ours["job.failed"] == ours["job.recovered"]
        keys |= set(ours.values())
    assert len(keys) == 2


def test_the_end_of_an_incident_has_the_key_of_its_beginning() -> None:
    for first, last in (("job.failed", "schedule.recovered"), ("job.late", "job.recovered")):
        _, _, opened = request("pagerduty", first)
        _, _, resolved = request("pagerduty", last)
        assert resolved["dedup_key"] == opened["dedup_key"]
        _, _, opened = request("opsgenie", first)
        url, _, _ = request("opsgenie", last)
        base, _, rest = url.removeprefix(f"{URL}/").partition("/")
        assert (unquote(base), rest) == (opened["alias"], "close?identifierType=alias")


def test_an_alert_says_how_many_failures_there_were() -> None:
    incident = {"failures": 14, "alerts": 3, "began_at": "2026-11-21T02:00:00+00:00"}
    _, _, said = request("pagerduty", "job.failed", incident=incident)
    facts = said["payload"]["custom_details"]
    assert facts["Failures"] == "14 since 2026-11-21T02:00:00+00:00"
    _, _, said = request("pagerduty", "job.failed", incident=incident | {"failures": 1})
    assert "Failures" not in said["payload"]["custom_details"]


def test_words_of_an_event() -> None:
    event = {"type": "job.failed", "timestamp": "t", "data": EVENT["job.failed"] | {"error": "no"}}
    assert formats.notice(event, "ns", CONSOLE) == formats.Notice(
        "Schedule 'nightly/€' failed",
        {"Error": "no", "Schedule": "nightly/€", "Task": "shop.charge", "Worker": "w1"},
        "error",
        "t",
        "pgbeat:ns:Schedule 'nightly/€'",
        False,
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
