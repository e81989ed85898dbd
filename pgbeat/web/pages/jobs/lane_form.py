"""The form of a lane's limits."""

from typing import Any

from pgbeat.jobs.lanes import concurrency
from pgbeat.jobs.lanes.model import Lane, parse_rate
from pgbeat.timetables import span
from pgbeat.web.pages import forms
from pgbeat.web.pages.forms import FormField, wide

NAME = FormField("name", "Name", hint="such as gpu; no slash")
_RATE = "such as 10/minute or 100/15 minutes; empty: any"
_FAIR = "jobs of each key take turns: kwargs.tenant, tag:tenant- …; empty: none"
FIELDS = (
    FormField("max_running", "Slots", "number", "how many run at once; empty: any number"),
    FormField("rate", "Rate", hint=_RATE),
    FormField(
        "rate_for", "For how long", hint="10 minutes: then the old rate returns; empty: for good"
    ),
    FormField("rate_unit", "Rate counts", hint="a resource, such as tokens; empty: jobs"),
    FormField("rate_key", "Rate of each", hint="task, tag, created_by or kwargs.NAME; empty: all"),
    FormField("fair_by", "Fair by", hint=_FAIR, offer="keys"),
    FormField("max_per_key", "Slots of each key", "number", "how many run at once; empty: any"),
    FormField("policy", "Policy", hint="decides which run together; empty: none", offer="policies"),
    wide("options", "The policy's options", "json", 'a JSON object: {"gpu": 2}'),
)


def offers() -> dict[str, list[str]]:
    """Returns the names to offer for the fields."""
    return {"policies": concurrency.registered(), "keys": ["task", "created_by", "tag"]}


def written(lane: Lane) -> dict[str, str]:
    """Returns a lane as the texts of the fields."""
    return {field.name: forms.text(field.kind, _value(lane, field.name)) for field in FIELDS}


def _value(lane: Lane, name: str) -> Any:
    if name == "rate_for":
        return None
    if name != "rate":
        return getattr(lane, name)
    if lane.rate_limit is None or lane.rate_period is None:
        return None
    rate = str(lane._replace(rate_key=None, rate_unit=None).rate)
    if parse_rate(rate) == (lane.rate_limit, lane.rate_period):
        return rate
    return f"{lane.rate_limit}/{span(lane.rate_period, units=9)}"
