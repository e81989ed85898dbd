"""The form of a lane's limits: its fields, and what is written into them as the API takes it."""

from collections.abc import Collection, Mapping
from typing import Any

from pgbeat.jobs.lanes import concurrency
from pgbeat.jobs.lanes.model import Lane, parse_rate
from pgbeat.timetables import span
from pgbeat.web.pages import forms
from pgbeat.web.pages.forms import Field

NAME = Field("name", "Name", hint="such as gpu; no slash")
_RATE = "such as 10/minute or 100/15 minutes; empty: any"
FIELDS = (
    Field("max_running", "Slots", "number", "how many run at once; empty: any number, 0: none"),
    Field("rate", "Rate", hint=_RATE),
    Field("rate_key", "Rate of each", hint="task, tag, created_by or kwargs.NAME; empty: all"),
    Field("policy", "Policy", hint="which may run together; empty: none", offer="policies"),
    Field("options", "The policy's options", "json", 'a JSON object: {"gpu": 2}', is_wide=True),
)


def offers() -> dict[str, list[str]]:
    """Names that fields may have."""
    return {"policies": concurrency.registered()}


def written(lane: Lane) -> dict[str, str]:
    """The fields as the lane is."""
    return {each.name: forms.text(each.kind, _value(lane, each.name)) for each in FIELDS}


def _value(lane: Lane, name: str) -> Any:
    if name != "rate":
        return getattr(lane, name)
    if lane.rate_limit is None or lane.rate_period is None:
        return None
    said = str(lane._replace(rate_key=None).rate)
    if parse_rate(said) == (lane.rate_limit, lane.rate_period):
        return said
    return f"{lane.rate_limit}/{span(lane.rate_period, units=9)}"


def changes(given: Mapping[str, str], changed: Collection[str]) -> dict[str, Any]:
    """What is to be changed, as the API takes it. Raises `Mistakes`."""
    found = forms.read(FIELDS, {name: given[name] for name in given if name in changed})
    if found.get("rate") is None and "rate" in found and not given["rate_key"]:
        found["rate_key"] = None
    return found
