"""What is sent to receivers that read no events: chat rooms, and services for people on call.

Pure functions of an event. The secret of a service's webhook is the service's key.
"""

import json
import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import quote

from pgbeat.errors import Problem

Format = Literal["standard", "slack", "teams", "discord", "pagerduty", "opsgenie"]
FORMATS = get_args(Format)
Severity = Literal["error", "warning", "info"]

#: Formats whose receivers have a key, how it looks, and what they call it.
_KEYS = {
    "pagerduty": (
        re.compile(r"[0-9A-Za-z]{32}"),
        "the integration key of an Events API v2 service",
    ),
    "opsgenie": (re.compile(r"[0-9A-Za-z-]{36}"), "the API key of an integration"),
}
#: Formats with a secret; of the others the URL is one.
WITH_SECRET = ("standard", *_KEYS)
_SEVERITIES: dict[str, Severity] = {
    "job.run.failed": "error",
    "job.failed": "error",
    "job.late": "warning",
    "schedule.disabled": "error",
    "schedule.paused": "warning",
    "schedule.stale": "error",
    "tick.failed": "error",
}
#: Events that end an incident.
RECOVERED = ("schedule.recovered", "job.recovered")
#: Fields of an event's data that people want to read, and what they are called.
_FACTS = {
    "error": "Error",
    "last_error": "Error",
    "last_job_error": "Error",
    "reason": "Reason",
    "disabled_reason": "Reason",
    "paused_reason": "Reason",
    "schedule": "Schedule",
    "task": "Task",
    "due_at": "Due",
    "worker": "Worker",
    "owner": "Owner",
    "last_completed_at": "Last completed",
    "failing_since": "Failing since",
}
#: Characters of these facts, at most, and of others. Receivers take some thousands in all.
_LONG, _MOST, _SHORT = {"Error", "Reason"}, 1000, 250
#: Bytes of a link that all receivers take.
_LONGEST_LINK = 2000


class Notice(NamedTuple):
    """An event in words."""

    title: str
    facts: dict[str, str]
    severity: Severity
    #: When it happened, in ISO 8601.
    at: str
    #: The same for all events of one incident: of a schedule, or else of a task.
    key: str
    #: Whether that incident is over.
    is_over: bool
    #: Its page in the console; empty if nobody said where that is.
    link: str


def is_signed(format: str) -> bool:
    """Returns whether the secret signs requests, as Standard Webhooks do."""
    return format == "standard"


def check_key(format: str, secret: str | None) -> list[Problem]:
    """Returns what is wrong with the secret of a webhook that signs nothing."""
    if format not in _KEYS:
        message = f"secret: {format} takes none; its URL is the secret"
        return [] if secret is None else [Problem("secret", "conflict", message)]
    pattern, name = _KEYS[format]
    if secret is None:
        return [Problem("secret", "required", f"secret: {format} needs {name}")]
    is_good = pattern.fullmatch(secret) is not None
    return [] if is_good else [Problem("secret", "malformed", f"secret: it is not {name}")]


def request(
    format: str, event: dict[str, Any], *, url: str, secret: str, namespace: str, console: str
) -> tuple[str, dict[str, str], bytes]:
    """Returns the URL, the headers and the body that say an event in a format.

    `url` is the webhook's, and `console` the console's address, or empty.
    """
    said = notice(event, namespace, console)
    headers = {"Authorization": f"GenieKey {secret}"} if format == "opsgenie" else {}
    if format == "opsgenie" and said.is_over:
        alias = quote(_key(said, 512), safe="")
        url = f"{url.rstrip('/')}/{alias}/close?identifierType=alias"
    body = json.dumps(_BODIES[format](said, secret), ensure_ascii=False)
    return url, headers, body.encode()


def notice(event: dict[str, Any], namespace: str, console: str) -> Notice:
    """Returns an event in words."""
    kind, data = str(event["type"]), event.get("data") or {}
    about = {**(data.get("job") or {}), **{k: v for k, v in data.items() if v is not None}}
    subject, path = _subject(kind, about)
    facts: dict[str, str] = {}
    for name, label in _FACTS.items():
        if about.get(name) not in (None, ""):
            facts.setdefault(label, _cut(str(about[name]), _MOST if label in _LONG else _SHORT))
    incident = event.get("incident") or data
    if incident.get("failures", 1) > 1:
        began = incident.get("began_at") or incident.get("failing_since")
        facts["Failures"] = f"{incident['failures']} since {began}"
    title = _CLOSED if kind in RECOVERED and about.get("reason") else _TITLES[kind]
    words = title.format_map(_Blanks(about, subject=subject)).split()
    link = f"{console.rstrip('/')}{path}" if console and path else ""
    return Notice(
        _cut(" ".join(words), _SHORT),
        facts,
        _SEVERITIES.get(kind, "info"),
        str(event.get("timestamp", "")),
        f"pgbeat:{namespace}:{subject}",
        kind in RECOVERED,
        link if len(link) <= _LONGEST_LINK else "",
    )


class _Blanks(dict[str, Any]):
    """An event's data for a title, where nothing is missing."""

    def __init__(self, data: dict[str, Any], **more: Any) -> None:
        super().__init__(data | more)

    def __missing__(self, key: str) -> str:
        return "?"


_TITLES = {
    "job.run.completed": "{subject}: an execution completed",
    "job.run.failed": "{subject}: an execution failed",
    "job.run.skipped": "{subject}: an execution was skipped",
    "job.failed": "{subject} failed",
    "job.late": "{subject} is late: it missed its {deadline}",
    "job.recovered": "{subject} recovered",
    "group.ended": "{subject} ended: {state}",
    "schedule.disabled": "{subject} was disabled",
    "schedule.paused": "{subject} was paused",
    "schedule.stale": "{subject} is stale: no job completed in time",
    "schedule.recovered": "{subject} recovered",
    "tick.failed": "{subject} could not be launched",
    "tick.skipped": "{subject} was skipped",
    "webhook.test": "A test of webhook '{webhook}'",
}
#: Of an incident that ended otherwise than by a success.
_CLOSED = "{subject}: the incident is closed"


def _subject(kind: str, about: dict[str, Any]) -> tuple[str, str]:
    """Returns what an event is about, and the path of its page."""
    job, schedule = about.get("job_id") or about.get("id"), about.get("schedule")
    if kind.startswith("job."):
        whose = f"Schedule '{schedule}'" if schedule else str(about.get("task"))
        return whose, f"/console/jobs/{job}" if job else ""
    if kind.startswith("group."):
        return f"Group '{about.get('name') or job}'", f"/console/groups/{job}"
    if kind.startswith(("schedule.", "tick.")):
        name = str(about.get("name") or schedule)
        return f"Schedule '{name}'", f"/console/schedules/{quote(name, safe='')}"
    return str(about.get("webhook")), ""


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _key(said: Notice, most: int) -> str:
    """Returns the incident's key; those of two incidents differ, also if they are cut."""
    if len(said.key) <= most:
        return said.key
    rest = sha256(said.key.encode()).hexdigest()[:16]
    return f"{said.key[: most - len(rest) - 1]}…{rest}"


# -- formats ---------------------------------------------------------------------------------------


def _slack(said: Notice, secret: str) -> dict[str, Any]:
    """Of an incoming webhook: https://docs.slack.dev/reference/block-kit."""
    lines = [f"*{_plain(said.title)}*"]
    lines += [f"{label}: {_plain(text)}" for label, text in said.facts.items()]
    link = f"\n<{said.link}|Open in the console>" if said.link else ""
    text = _cut("\n".join(lines), 3000 - len(link)) + link
    section = {"type": "mrkdwn", "text": text, "verbatim": True}
    return {"text": _plain(said.title), "blocks": [{"type": "section", "text": section}]}


def _plain(text: str) -> str:
    """Returns a text that Slack, asked for it verbatim, takes for neither a mention nor a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _teams(said: Notice, secret: str) -> dict[str, Any]:
    """Of a workflow that posts cards. Runs of text are shown as they are, without Markdown."""

    def run(text: str, **more: Any) -> dict[str, Any]:
        return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text, **more}]}

    color = {"error": "attention", "warning": "warning", "info": "default"}[said.severity]
    color = "good" if said.is_over else color
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [
            run(said.title, weight="bolder", size="medium", color=color),
            *(run(f"{label}: {text}") for label, text in said.facts.items()),
        ],
    }
    if said.link:
        open_page = {"type": "Action.OpenUrl", "title": "Open in the console", "url": said.link}
        card["actions"] = [open_page]
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return {"type": "message", "attachments": [attachment]}


def _discord(said: Notice, secret: str) -> dict[str, Any]:
    """Of a channel's webhook. Nobody is mentioned, whatever an error says, nor is it Markdown."""

    def plain(text: str, most: int) -> str:
        return _cut(re.sub(r"([\\`*_~|<>#\[\]])", r"\\\1", text), most)

    color = {"error": 0xD32F2F, "warning": 0xF9A825, "info": 0x607D8B}[said.severity]
    color = 0x2E7D32 if said.is_over else color
    embed: dict[str, Any] = {
        "title": plain(said.title, 256),
        "color": color,
        "fields": [
            {"name": label, "value": plain(text, _MOST if label in _LONG else _SHORT)}
            for label, text in said.facts.items()
        ],
    }
    embed |= {"timestamp": said.at} if said.at else {}
    embed |= {"url": said.link} if said.link else {}
    return {"embeds": [embed], "allowed_mentions": {"parse": []}}


def _pagerduty(said: Notice, secret: str) -> dict[str, Any]:
    """Of the Events API v2. Events of one incident have one `dedup_key`; the last resolves it."""
    if said.is_over:
        return {"routing_key": secret, "event_action": "resolve", "dedup_key": _key(said, 255)}
    payload: dict[str, Any] = {
        "summary": said.title,
        "source": "pgbeat",
        "severity": said.severity,
        "custom_details": said.facts,
    }
    payload |= {"timestamp": said.at} if said.at else {}
    body: dict[str, Any] = {
        "routing_key": secret,
        "event_action": "trigger",
        "dedup_key": _key(said, 255),
        "client": "pgbeat",
        "payload": payload,
    }
    if said.link:
        body["links"] = [{"href": said.link, "text": "Open in the console"}]
    return body


def _opsgenie(said: Notice, secret: str) -> dict[str, Any]:
    """Of the Alert API. Events of one incident have one `alias`, by which the last closes it."""
    if said.is_over:
        return {"source": "pgbeat", "note": said.title}
    return {
        "message": _cut(said.title, 130),
        "alias": _key(said, 512),
        "description": "\n".join(_described(said)),
        "details": said.facts,
        "source": "pgbeat",
        "priority": {"error": "P2", "warning": "P3", "info": "P5"}[said.severity],
    }


def _described(said: Notice) -> Iterator[str]:
    yield from (f"{label}: {text}" for label, text in said.facts.items())
    if said.link:
        yield said.link


_BODIES: dict[str, Callable[[Notice, str], dict[str, Any]]] = {
    "slack": _slack,
    "teams": _teams,
    "discord": _discord,
    "pagerduty": _pagerduty,
    "opsgenie": _opsgenie,
}
