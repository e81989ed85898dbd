"""The fields of a schedule, in the forms that make one and change one."""

from collections.abc import Mapping
from typing import Any

from pgbeat.schedules.model import TIMETABLES, Schedule
from pgbeat.web.pages import job_fields
from pgbeat.web.pages.forms import Field, Mistakes, Section, all_of, read, text

NAME = Field("name", "Name", hint="such as nightly-report; without a slash")
_WHEN = (
    Field("kind", "Timetable, by", "choice", options=tuple(TIMETABLES)),
    Field(
        "timetable", "Timetable",
        hint="cron: 0 */6 * * * – every: 15 min – once_at: 2026-12-24T18:00:00Z – solar: sunset "
        "59.91 10.75 – rrule: FREQ=WEEKLY;BYDAY=MO – after: another schedule",
        is_wide=True,
    ),
    Field("timezone", "Time zone", hint="such as Europe/Oslo; empty: the app's"),
)  # fmt: skip
_BOUNDS = (
    Field("starts_at", "Not before", "moment", "UTC"),
    Field("ends_at", "Not after", "moment", "UTC"),
    Field("max_runs", "Most runs", "number", "then it is done"),
    Field("after_outcome", "After another: once its job", "choice",
          options=("completed", "failed", "finished")),
)  # fmt: skip
_WHAT = (
    job_fields.TASK,
    job_fields.ARGS,
    job_fields.KWARGS,
    Field(
        "condition_sql",
        "Condition in SQL",
        "long",
        "launched when the first value is true",
        is_wide=True,
    ),
    Field(
        "job_policy.template",
        "Template",
        offer="templates",
        hint="whose arguments and policy it has",
    ),
    Field("owner", "Owner"),
)
_HOW = (
    job_fields.QUEUE,
    Field("launcher", "Launcher", offer="launchers", hint="GenericLauncher: as it is written here"),
    job_fields.OPTIONS,
)
_BETWEEN = (
    Field("overlap", "While the job before it goes on", "choice",
          options=("allow", "skip", "queue_one", "buffer_all", "cancel_previous")),
    Field("catch_up", "Of missed times", "choice", options=("latest", "all", "none")),
    Field("catch_up_limit", "Of all, at most", "number"),
    Field("grace", "Grace", "length", "how late it may be: 15 min; empty: however late"),
    Field("min_interval", "Least interval", "length", "between two launches: 1 h"),
    Field("jitter", "Jitter", "length", "later by up to that: 2 min"),
    Field("calendar", "Calendar", offer="calendars", hint="days that it leaves out"),
)  # fmt: skip
_FAILS = (
    Field("max_retries", "Retries", "number", "then it is disabled"),
    Field("retry_base", "First after", "length", "such as 1 min"),
    Field("retry_factor", "Then times", hint="such as 2"),
    Field("retry_cap", "But no later than", "length", "such as 1 h"),
    Field("probe_after", "Once disabled, try after", "length", "such as 1 day; empty: never"),
    Field(
        "pause_after_failures",
        "Pause after failed jobs",
        "number",
        "so many in a row; empty: never",
    ),
)

SECTIONS = (
    Section("When", _WHEN, is_open=True),
    Section("What", _WHAT, is_open=True),
    Section("What it is for", job_fields.ABOUT, "description, labels, metadata"),
    Section("From when, until when", _BOUNDS, "not before, not after, most runs"),
    Section("What may keep it", _BETWEEN, "overlap, missed times, grace, calendar"),
    Section("If it can't be launched", _FAILS, "its condition fails, or the broker is away"),
    Section("How it is launched", _HOW, "queue, launcher, publish options"),
    *(
        each._replace(title=f"Its jobs: {each.title[0].lower()}{each.title[1:]}")
        for each in job_fields.sections("job_policy.")
    ),
)
FIELDS = all_of(SECTIONS)
_KINDS = {each.name: each.kind for each in FIELDS}
#: What has always a value: an empty field is a mistake of a change.
_ALWAYS = {"overlap", "catch_up", "catch_up_limit", "max_retries", "retry_base", "retry_factor",
           "retry_cap", "launcher", "after_outcome"}  # fmt: skip
_TIMETABLE = ("kind", "timetable")
#: What a new schedule's form begins with, where it has always a value.
START = {
    "kind": "cron", "after_outcome": "completed", "overlap": "allow", "catch_up": "latest",
}  # fmt: skip
#: Fields of a schedule that are another one of the form.
OTHERS = dict.fromkeys(TIMETABLES, "timetable")


def written(row: Schedule) -> dict[str, str]:
    """The fields of the form, as the schedule is."""
    kind = next((each for each in TIMETABLES if getattr(row, each) is not None), "")
    found = {
        name: text(of, getattr(row, name))
        for name, of in _KINDS.items()
        if name not in _TIMETABLE and not name.startswith("job_policy.")
    }
    found |= {"kind": kind, "timetable": text("text", getattr(row, kind)) if kind else ""}
    return found | job_fields.written(row.job_policy, "job_policy.")


def changes(given: Mapping[str, str], changed: Mapping[str, str], policy: dict[str, Any]
            ) -> dict[str, Any]:  # fmt: skip
    """Returns what to change, as the API takes it. `policy` is the present job policy. Raises
    `Mistakes`."""
    errors = {name: "it needs a value" for name in changed if name in _ALWAYS and not changed[name]}
    found = _read(given, changed, errors)
    if any(name.startswith("job_policy.") for name in found):
        found["job_policy"] = job_fields.merged(policy, found, "job_policy.")
    return found


def values(given: Mapping[str, str]) -> dict[str, Any]:
    """A new schedule, as the API takes it. Raises `Mistakes`."""
    filled = {name: value for name, value in given.items() if value or name in _TIMETABLE}
    errors = {} if given.get("name") else {"name": "what is it called?"}
    found = _read(given, filled, errors)
    policy = job_fields.merged({}, found, "job_policy.")
    return found | ({"job_policy": policy} if policy else {})


def _read(
    given: Mapping[str, str], which: Mapping[str, str], errors: dict[str, str]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if not set(_TIMETABLE).isdisjoint(which) and given["kind"] in TIMETABLES:
        if not given["timetable"]:
            errors["timetable"] = "when? A schedule needs a timetable"
        found[given["kind"]] = given["timetable"]
    others = {name: value for name, value in which.items() if name not in _TIMETABLE}
    try:
        found |= read((NAME, *FIELDS), others)
    except Mistakes as mistakes:
        errors |= mistakes.errors
    if errors:
        raise Mistakes(errors)
    return found
