"""The forms of new and existing schedules."""

from collections.abc import Mapping
from typing import Any, get_args

from pgbeat.schedules import AfterMatch, AfterOutcome, CatchUp, Overlap, checked
from pgbeat.schedules.model import TIMETABLES, Schedule
from pgbeat.web.pages import forms
from pgbeat.web.pages.forms import FormField, FormSection, Mistakes, choice, wide
from pgbeat.web.pages.jobs import job_fields

NAME = FormField("name", "Name", hint="such as nightly-report; without a slash")
_STATES: dict[str, dict[str, bool]] = {
    "active": {},
    "paused": {"paused": True},
    "disabled": {"enabled": False},
}
STATE = choice("state", "At first", tuple(_STATES))
#: Fields that only a new schedule's form has.
NEW = (NAME, STATE)
_WHEN = (
    choice("kind", "Kind of timetable", tuple(TIMETABLES)),
    wide(
        "timetable",
        "Timetable",
        "long",
        "cron: 0 */6 * * * – every: 15 min – once_at: 2026-12-24T18:00:00Z – solar: sunset 59.91 "
        "10.75 – rrule: FREQ=WEEKLY;BYDAY=MO – after: another schedule; cron and after may have "
        "several lines",
    ),
    FormField("timezone", "Time zone", hint="such as Europe/Oslo; empty: the app's"),
)
_BOUNDS = (
    FormField("starts_at", "Not before", "moment", "UTC"),
    FormField("ends_at", "Not after", "moment", "UTC"),
    FormField("max_runs", "Maximum runs", "number", "then it is done"),
    choice("after_outcome", "After another schedule: when its job has", get_args(AfterOutcome)),
    choice("after_match", "After several: a job of", get_args(AfterMatch)),
)
_WHAT = (
    job_fields.TASK,
    job_fields.ARGS,
    job_fields.KWARGS,
    wide("condition_sql", "Condition in SQL", "long", "it launches if the first value is true"),
    FormField(
        "job_policy.template", "Template", offer="templates", hint="for arguments and policy"
    ),
    FormField("owner", "Owner"),
)
_HOW = (
    job_fields.QUEUE,
    FormField("launcher", "Launcher", offer="launchers", hint="GenericLauncher: as written here"),
    job_fields.OPTIONS,
)
_BETWEEN = (
    choice("overlap", "While the previous job runs", get_args(Overlap)),
    choice("catch_up", "Missed times", get_args(CatchUp)),
    FormField("catch_up_limit", "Catch up at most", "number"),
    FormField("grace", "Grace", "length", "how late it may launch: 15 min; empty: however late"),
    FormField("min_interval", "Minimum interval", "length", "between two launches: 1 h"),
    FormField("jitter", "Jitter", "length", "delays it by up to: 2 min"),
    FormField("calendar", "Calendar", offer="calendars", hint="for times to skip"),
)
_FAILS = (
    FormField("max_retries", "Retries", "number", "then it is disabled"),
    FormField("retry_base", "First retry after", "length", "such as 1 min"),
    FormField("retry_factor", "Factor", hint="such as 2"),
    FormField("retry_cap", "Longest delay", "length", "such as 1 h"),
    FormField("probe_after", "Once disabled, try after", "length", "such as 1 day; empty: never"),
    FormField(
        "pause_after_failures",
        "Pause after failed jobs",
        "number",
        "so many in a row; empty: never",
    ),
    FormField(
        "fresh_within",
        "Stale without a completed job for",
        "length",
        "such as 2 days; empty: never",
    ),
    FormField("check_in_url", "Check-in URL", hint="requested at each run; empty: none"),
)

SECTIONS = (
    FormSection("When", _WHEN, is_open=True),
    FormSection("What", _WHAT, is_open=True),
    job_fields.ABOUT,
    FormSection("Start and end", _BOUNDS, "not before, not after, maximum runs"),
    FormSection("Overlap and skipping", _BETWEEN, "overlap, missed times, grace, calendar"),
    FormSection("If launching fails", _FAILS, "retries, and when to disable it"),
    FormSection("How it is launched", _HOW, "queue, launcher, publish options"),
    *(
        section._replace(title=f"Its jobs: {section.title[0].lower()}{section.title[1:]}")
        for section in job_fields.sections("job_policy.")
    ),
)
FIELDS = forms.all_of(SECTIONS)
_KINDS = {field.name: field.kind for field in FIELDS}
#: Fields that can't be empty.
_ALWAYS = checked.REQUIRED.intersection(_KINDS)
_TIMETABLE = ("kind", "timetable")
#: The values of a new schedule's form.
START = {
    "state": "active",
    "kind": "cron",
    "after_outcome": "completed",
    "after_match": "all",
    "overlap": "allow",
    "catch_up": "latest",
}
#: Values that replace wrong ones, to find other mistakes.
HARMLESS = START | {"name": "preview-of-a-schedule", "kind": "every", "timetable": "1 day"}
#: Fields of the API that have another name in the form.
OTHERS = dict.fromkeys(TIMETABLES, "timetable")


def written(row: Schedule) -> dict[str, str]:
    """Returns a schedule as the texts of the fields."""
    kind = next((column for column in TIMETABLES if getattr(row, column) is not None), "")
    texts = {
        name: forms.text(of, getattr(row, name))
        for name, of in _KINDS.items()
        if name not in _TIMETABLE and not name.startswith("job_policy.")
    }
    texts |= {"kind": kind, "timetable": forms.text("text", getattr(row, kind)) if kind else ""}
    return texts | job_fields.written(row.job_policy, "job_policy.")


def changes(
    texts: Mapping[str, str], changed: Mapping[str, str], policy: dict[str, Any]
) -> dict[str, Any]:
    """Returns the changes as the API takes them. Raises `Mistakes`."""
    errors = {
        name: "must have a value" for name in changed if name in _ALWAYS and not changed[name]
    }
    fields = _read(texts, changed, errors)
    if any(name.startswith("job_policy.") for name in fields):
        fields["job_policy"] = job_fields.merged(policy, fields, "job_policy.")
    return fields


def values(texts: Mapping[str, str]) -> dict[str, Any]:
    """Returns a new schedule as the API takes it. Raises `Mistakes`."""
    filled = {name: value for name, value in texts.items() if value or name in _TIMETABLE}
    errors = {} if texts.get("name") else {"name": "the name is missing"}
    state = filled.pop("state", "active")
    if state not in _STATES:
        errors["state"] = f"must be one of {', '.join(_STATES)}"
    fields = _read(texts, filled, errors)
    policy = job_fields.merged({}, fields, "job_policy.")
    return fields | _STATES[state] | ({"job_policy": policy} if policy else {})


def _read(
    texts: Mapping[str, str], which: Mapping[str, str], errors: dict[str, str]
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if not set(_TIMETABLE).isdisjoint(which) and texts["kind"] in TIMETABLES:
        if not texts["timetable"]:
            errors["timetable"] = "the timetable is missing"
        fields[texts["kind"]] = texts["timetable"]
    others = {name: value for name, value in which.items() if name not in _TIMETABLE}
    try:
        fields |= forms.read((NAME, *FIELDS), others)
    except Mistakes as mistakes:
        errors |= mistakes.errors
    if errors:
        raise Mistakes(errors)
    return fields
