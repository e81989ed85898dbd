"""The fields of a schedule in a file, each with its kind and default."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, get_args

from pgbeat.schedules import AfterMatch, AfterOutcome, CatchUp, Overlap
from pgbeat.schedules.files.job_policies import Policy
from pgbeat.schedules.files.kinds import (
    Choice,
    Duration,
    Json,
    Kind,
    Labels,
    Moment,
    Names,
    Number,
    Switch,
    Text,
    Whole,
)


@dataclass(frozen=True, slots=True)
class FileField:
    """A field of a schedule in a file; all but `paused` are columns."""

    name: str
    kind: Kind
    about: str
    #: The column's default, for files that leave the field out.
    default: Any = field(default=None, hash=False)

    def plain(self, value: Any) -> Any:
        """Returns a row's value as a file writes it; `None` stays `None`."""
        return None if value is None else self.kind.plain(value)


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A change of a field. Values are as a file writes them."""

    field: str
    old: Any
    new: Any
    #: Whether somebody edited the row since the last sync, which wrote `was`.
    by_hand: bool = False
    was: Any = None


_TIMES = 2**31 - 1
#: Name, kind and meaning of each field, and its default where it has one.
_TABLE: tuple[tuple[Any, ...], ...] = (
    (
        "task", Text("shop.tasks.backup", 255),
        "A registered task's name; by default the launcher's or the template's.",
    ),
    (
        "launcher", Text("CategoryRefresh", 200),
        "A registered launcher, which decides whether to launch and with what.",
        "GenericLauncher",
    ),
    (
        "cron", Text("0 2 * * mon-fri"),
        "When: minute, hour, day of month, month, weekday (and seconds last), or @daily and kin. "
        "It may have several lines.",
    ),
    ("every", Duration("15 minutes", False), "When: once in such a length of time."),
    ("once_at", Moment(), "When: one time."),
    ("solar", Text("sunset 59.91 10.75"), "When: an event of the sun, latitude, longitude."),
    ("rrule", Text("FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9"), "When: a rule of RFC 5545."),
    (
        "after", Names(Text("nightly", 200)),
        "When a job of the schedule of that name has ended; it may be a list of names.",
    ),
    (
        "after_outcome", Choice(get_args(AfterOutcome)),
        "Which end of that job launches; finished is either.", "completed",
    ),
    (
        "after_match", Choice(get_args(AfterMatch)),
        "After a job of all of them, or of any, since its last decision.", "all",
    ),
    (
        "timezone", Text("Europe/Oslo"),
        "IANA name of the zone whose clock it follows; by default the app's.",
    ),
    (
        "args", Json(list, [1, "two"]),
        "The task's positional arguments, with placeholders: {{ due_at | date }}.", [],
    ),
    (
        "kwargs", Json(dict, {"area": "DK1"}),
        "The task's keyword arguments, with placeholders: {{ due_at | date }}.", {},
    ),
    ("queue", Text("slow"), "The queue to publish to; by default the task's route."),
    (
        "options", Json(dict, {"priority": 3}),
        "Celery's publish options: priority, expires (seconds), headers …", {},
    ),
    (
        "condition_sql", Text("SELECT count(*) > 0 FROM orders WHERE NOT done"),
        "A SELECT. Launch if the first column of its first row is not null, false, 0 or empty.",
    ),
    ("starts_at", Moment(), "It is not due before."),
    ("ends_at", Moment(), "It is not due after."),
    ("max_runs", Whole(1, _TIMES), "After so many launches it is completed."),
    (
        "jitter", Duration("5 minutes", longest=timedelta(days=366)),
        "Each due time is delayed by a fixed part of it.", timedelta(0),
    ),
    ("calendar", Text("holidays", 200), "The calendar whose excluded times it skips."),
    (
        "catch_up", Choice(get_args(CatchUp)),
        "Which due times that passed while no beat ran are launched.", "latest",
    ),
    ("catch_up_limit", Whole(1, 10_000), "For catch_up all: how many at most.", 100),
    ("grace", Duration("10 minutes"), "How late a due time may be decided."),
    (
        "overlap", Choice(get_args(Overlap)),
        "What happens while the previous job is unfinished.", "allow",
    ),
    ("min_interval", Duration("1 hour"), "Launches are never closer together."),
    ("max_retries", Whole(0, _TIMES), "Failed decisions in a row after which it is disabled.", 5),
    (
        "retry_base", Duration("1 minute"),
        "The n-th retry comes after retry_base × retry_factor^n.", timedelta(minutes=1),
    ),
    ("retry_factor", Number(1, 1000), "See retry_base.", 2.0),
    ("retry_cap", Duration("1 hour"), "The longest wait for a retry.", timedelta(hours=1)),
    (
        "probe_after", Duration("6 hours", False),
        "How long after it was disabled for failures it is tried once more.",
    ),
    (
        "job_policy", Policy(),
        "How its jobs are made, queued and retried: lane, priority, max_attempts …", {},
    ),
    (
        "pause_after_failures", Whole(1, 1000),
        "Failed jobs in a row after which it is paused; by default never.",
    ),
    (
        "fresh_within", Duration("2 days", False),
        "It is stale if none of its jobs has completed for so long; by default never.",
    ),
    (
        "check_in_url", Text("https://hc-ping.com/…{/start,,/fail}?rid={id}", 2000),
        "URL to which each run is reported; {start,success,failure} in it chooses the request.",
    ),
    ("owner", Text("data team"), "The responsible person or team."),
    ("description", Text("Sends the invoices", 2000), "What it is for; up to 2,000 characters."),
    (
        "labels", Labels(),
        "Texts to find it and its jobs by: up to 32, of up to 200 characters.", {},
    ),
    (
        "metadata", Json(dict, {"runbook": "https://…"}),
        "Any other data; up to 16,384 characters as JSON.", {},
    ),
    ("enabled", Switch(), "Whether it is in service.", True),
    ("paused", Switch(), "Whether it is held until it is resumed.", False),
)  # fmt: skip
FIELDS = {name: FileField(name, *rest) for name, *rest in _TABLE}
#: Fields that people or failures may switch between two syncs.
SWITCHES = ("enabled", "paused")


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row's values as a file writes them, in the order of `FIELDS`, without defaults."""
    return {
        name: field.plain(values[name])
        for name, field in FIELDS.items()
        if not same(values[name], field.default)
    }


def same(one: Any, other: Any) -> bool:
    """Returns whether two values of a row are the same; in JSON, 1, 1.0 and true differ."""
    if one != other:
        return False
    if not one or type(one) not in (list, dict):
        return True
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
