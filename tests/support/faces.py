"""Asks each face of the app to make or to change a thing: the API, the command line, a page."""

import json
from typing import Any, NamedTuple

from click.testing import Result
from httpx import Response

from pgbeat.database.tables import EVENTS
from tests.support.command_line import run_with
from tests.support.pages import html
from tests.support.web import Web


class Noun(NamedTuple):
    """How each face makes and changes one."""

    #: What makes a good one, if nothing takes its place.
    good: dict[str, Any]
    #: Method and path of the API, for a new one and for the one that is there.
    api: tuple[str, ...]
    cli: tuple[str, ...]
    pages: tuple[str, ...]


KINDS = {"cron", "every", "once_at", "solar", "rrule", "after"}
NOUNS = {
    "schedule": Noun(
        {"name": "s", "task": "tests.add", "cron": "0 * * * *"},
        ("POST /admin/scheduled-jobs", "PATCH /admin/scheduled-jobs/there"),
        ("add {name}", "update there"),
        ("new/schedule", "schedules/there"),
    ),
    "job": Noun(
        {"task": "jobs.add", "args": [1]}, ("POST /jobs",), ("jobs run {task}",), ("new/job",)
    ),
    "template": Noun(
        {"name": "t", "task": "jobs.add"},
        ("POST /templates", "PUT /templates/there"),
        ("templates set {name}", "templates set there"),
        ("new/template", "templates/there"),
    ),
    "lane": Noun(
        {"name": "l"},
        ("PUT /lanes/{name}", "PUT /lanes/there"),
        ("lanes set {name}", "lanes set there"),
        ("new/lane", "lanes/there"),
    ),
    "webhook": Noun(
        {"name": "w", "url": "https://example.com", "events": ["job.failed"]},
        ("POST /webhooks", "PATCH /webhooks/there"),
        ("webhooks add {name}", "webhooks update there"),
        ("new/webhook", "webhooks/there"),
    ),
    "backfill": Noun(
        {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T03:30:00Z"},
        ("POST /admin/scheduled-jobs/there/backfill",),
        ("backfill there",),
        ("backfill/there",),
    ),
}


#: Fields by their options, where these have other names.
OPTIONS = {
    "at": ("once_at", "run_at"),
    "in": ("countdown",),
    "limit": ("max_running", "limit"),
    "for": ("rate_for",),
    "tag": ("tags",),
    "label": ("labels",),
    "resource": ("resources",),
    "event": ("events",),
    "from": ("start",),
    "to": ("end",),
}
FLAGS = {name: flag for flag, names in OPTIONS.items() for name in names}
FLAGS |= {"schedules": "schedule", "tasks": "task"}


def text(value: Any) -> str:
    """Returns a value as somebody types it."""
    return value if isinstance(value, str) else json.dumps(value)


def typed(name: str, value: Any) -> str:
    """Returns a field's value as somebody writes it into a form."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if name in ("tags", "schedules", "tasks") else text(value)


def options(noun: str, values: dict[str, Any]) -> list[str]:
    """Returns the words of a command line."""
    words: list[str] = []
    for name, value in values.items():
        if name == "job_policy":
            of_job = "job_" if noun == "schedule" else ""
            policy = {
                f"{of_job * name.startswith('retry')}{name}": each for name, each in value.items()
            }
            words += options("job", policy)
            continue
        is_map = name in ("resources", "labels")
        items = [f"{key}={each}" for key, each in value.items()] if is_map else [value]
        if value is True:
            words.append(f"--{name.replace('_', '-')}")
            continue
        for item in value if name in ("tags", "events", "schedules", "tasks") else items:
            words += [f"--{FLAGS.get(name, name).replace('_', '-')}", text(item)]
    return words


def ask_api(web: Web, route: str, values: dict[str, Any]) -> Response:
    """Has an endpoint asked by an administrator."""
    method, path = route.format_map(values).split(" ")
    body = {key: value for key, value in values.items() if method != "PUT" or key != "name"}
    answer: Response = web.admin.request(method, path, json=body)
    return answer


def ask_cli(web: Web, noun: str, command: str, values: dict[str, Any]) -> Result:
    """Runs a command with the values as its options."""
    words = [values.get(word[1:-1]) if word[0] == "{" else word for word in command.split(" ")]
    others = {
        key: value for key, value in values.items() if f"{{{key}}}" not in f"{{name}}{command}"
    }
    given = [word for word in [*words, *options(noun, others), "--json"] if word is not None]
    return run_with(web.app.state.pgbeat.celery, *given)


def ask_page(web: Web, path: str, values: dict[str, Any]) -> Response:
    """Posts the form of a page; that of a thing is filled in as it is."""
    form: dict[str, str] = {"do": "launch"} if path.startswith("backfill") else {}
    for name, value in values.items():
        if name in KINDS:
            form |= {"kind": name, "timetable": text(value)}
        elif name == "job_policy":
            form |= {f"job_policy.{key}": typed(key, each) for key, each in value.items()}
        elif name == "events":
            form |= {f"event:{each}": "yes" if each in value else "" for each in EVENTS}
        else:
            form[name] = "" if value is None else typed(name, value)
    page = web.admins_browser
    if not path.startswith(("new/", "backfill/")):
        form = html(page.get(f"/console/{path}")).edit | form
    answer: Response = page.post(f"/console/{path}", data=form)
    return answer
