"""What a file may say of a schedule: one line for each field, with its kind and its default."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pgbeat.schedules.files.job_policies import Policy
from pgbeat.schedules.files.kinds import (
    Choice,
    Duration,
    Json,
    Kind,
    Labels,
    Moment,
    Number,
    Switch,
    Text,
    Whole,
)


@dataclass(frozen=True, slots=True)
class Field:
    """Something that a file may say of a schedule; all but `paused` are columns."""

    name: str
    kind: Kind
    about: str
    #: What holds where the file says nothing: the column's default.
    default: Any = field(default=None, hash=False)

    def plain(self, value: Any) -> Any:
        """A row's value as a file writes it; nothing stays `None`."""
        return None if value is None else self.kind.plain(value)


_TIMES = 2**31 - 1

FIELDS = {
    f.name: f
    for f in (
        Field("task", Text("shop.tasks.backup", 255), "The task's registered name."),
        Field(
            "launcher", Text("CategoryRefresh", 200),
            "A registered launcher, which decides whether to launch and with what.",
            "GenericLauncher",
        ),
        Field(
            "cron", Text("0 2 * * mon-fri"),
            "When: minute, hour, day of month, month, weekday (and seconds last), or @daily and "
            "kin.",
        ),
        Field("every", Duration("15 minutes", False), "When: once in such a length of time."),
        Field("once_at", Moment(), "When: one time."),
        Field(
            "solar", Text("sunset 59.91 10.75"), "When: an event of the sun, latitude, longitude."
        ),
        Field("rrule", Text("FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9"), "When: a rule of RFC 5545."),
        Field("after", Text("nightly", 200), "When a job of the schedule of that name has ended."),
        Field(
            "after_outcome", Choice(("completed", "failed", "finished")),
            "Which end of that job launches; finished is either.", "completed",
        ),
        Field("timezone", Text("Europe/Oslo"), "The zone of its times, an IANA name."),
        Field(
            "args", Json(list, [1, "two"]),
            "The task's positional arguments; {{ due_at | date }} and its like are filled in.", [],
        ),
        Field(
            "kwargs", Json(dict, {"area": "DK1"}),
            "The task's keyword arguments; {{ due_at | date }} and its like are filled in.", {},
        ),
        Field("queue", Text("slow"), "The queue to publish to; the task's own by default."),
        Field(
            "options", Json(dict, {"priority": 3}),
            "Publish options: priority, expires (seconds), headers …", {},
        ),
        Field(
            "condition_sql", Text("SELECT count(*) > 0 FROM orders WHERE NOT done"),
            "Launch only if the first column of its first row is true.",
        ),
        Field("starts_at", Moment(), "It is not due before."),
        Field("ends_at", Moment(), "It is not due after."),
        Field("max_runs", Whole(1, _TIMES), "After so many launches it is done."),
        Field(
            "jitter", Duration("5 minutes", longest=timedelta(days=366)),
            "Each due time is put off by a fixed part of it.", timedelta(0),
        ),
        Field("calendar", Text("holidays", 200), "The calendar whose excluded times it skips."),
        Field(
            "catch_up", Choice(("latest", "all", "none")),
            "What of the times missed while nothing ran is made up for.", "latest",
        ),
        Field(
            "catch_up_limit", Whole(1, 10_000), "For catch_up all: how many times at most.", 100
        ),
        Field("grace", Duration("10 minutes"), "How late still counts."),
        Field(
            "overlap", Choice(("allow", "skip", "queue_one", "buffer_all", "cancel_previous")),
            "What happens while the previous job is unfinished.", "allow",
        ),
        Field("min_interval", Duration("1 hour"), "Launches are never closer together."),
        Field("max_retries", Whole(0, _TIMES), "Failures in a row after which it is disabled.", 5),
        Field(
            "retry_base", Duration("1 minute"),
            "The n-th retry comes after retry_base × retry_factor^n.", timedelta(minutes=1),
        ),
        Field("retry_factor", Number(1, 1000), "See retry_base.", 2.0),
        Field("retry_cap", Duration("1 hour"), "The longest wait for a retry.", timedelta(hours=1)),
        Field(
            "probe_after", Duration("6 hours", False),
            "Disabled for its failures, it is tried again after this long.",
        ),
        Field(
            "job_policy", Policy(),
            "How its jobs are made, queued and retried: lane, priority, max_attempts …", {},
        ),
        Field(
            "pause_after_failures", Whole(1, 1000),
            "Jobs that fail in a row after which it is paused; never by default.",
        ),
        Field("owner", Text("data team"), "Whom to ask about it."),
        Field("description", Text("Sends the invoices", 2000), "What it is for."),
        Field("labels", Labels(), "Names and texts to find it by; its jobs have them too.", {}),
        Field(
            "metadata", Json(dict, {"runbook": "https://…"}),
            "Anything else to keep with it; 16,384 characters as JSON.", {},
        ),
        Field("enabled", Switch(), "Whether it is in service.", True),
        Field("paused", Switch(), "Whether it is held until it is resumed.", False),
    )
}  # fmt: skip

#: Exactly one of them says when.
TIMETABLES = ("cron", "every", "once_at", "solar", "rrule", "after")
#: Those that a person or failures may switch, between two syncs.
SWITCHES = ("enabled", "paused")


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a row as a file writes them, defaults left out, in the order of `FIELDS`."""
    return {
        name: field.plain(values[name])
        for name, field in FIELDS.items()
        if not same(values[name], field.default)
    }


def same(one: Any, other: Any) -> bool:
    """Whether two values of a row are the same; in JSON, 1, 1.0 and true are not."""
    if one != other:
        return False
    if not one or type(one) not in (list, dict):
        return True
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
