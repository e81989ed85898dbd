"""Lanes in files: their limits. Pauses, and rates that hold for a time, are operation."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database.tables import lanes as table
from pgbeat.errors import InvalidJob
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes.model import Lane
from pgbeat.jobs.verbs import lane_control
from pgbeat.schedules.files.fields import FileField
from pgbeat.schedules.files.kinds import Duration, Json, Text, Whole
from pgbeat.schedules.files.nouns.noun import FileNoun, Plain, Stored

_LIMIT = Whole(0, 1_000_000)
_FIELDS = (
    FileField("max_running", _LIMIT, "How many jobs run at once; null for no limit."),
    FileField("rate", Text("10/minute", 100), "How many jobs may start in a period."),
    FileField(
        "rate_key", Text("task", 210), "Count them by task, tag, created_by or kwargs.NAME."
    ),
    FileField(
        "rate_unit", Text("tokens", 200), "A job takes as much of the rate as it needs of this."
    ),
    FileField(
        "fair_by", Text("kwargs.tenant", 210),
        "Jobs of each key take turns: task, created_by, tag, tag:PREFIX or kwargs.NAME.",
    ),
    FileField("max_per_key", _LIMIT, "How many jobs of each key run at once."),
    FileField("policy", Text("tags", 200), "The policy that decides which jobs run together."),
    FileField("options", Json(dict, {"heavy": 1}), "The policy's options.", {}),
)  # fmt: skip
#: A lane of which nothing is said.
_BLANK = Lane._make({} if name == "options" else None for name in Lane._fields)


class _Lanes(FileNoun):
    """Lanes. `max_running` is written if nothing else limits the lane, even if it is null."""

    section, name = "lanes", "lane"
    fields: ClassVar = {field.name: field for field in _FIELDS}
    table, columns, row = table, lanes.COLUMNS, Lane

    def check(self, name: str, given: Plain) -> dict[str, Any]:
        changes = lane_control.read_changes(given)
        lane = _BLANK._replace(**changes)
        lane_control.problems(lane, new=changes).raise_if_any(InvalidJob)
        return self.values(Stored(lane, None))

    def values(self, stored: Stored) -> dict[str, Any]:
        lane = stored.row
        values = {name: getattr(lane, name, None) for name in self.fields} | {"rate": _rate(lane)}
        # Else they are those of a rate that holds for a time.
        return values if values["rate"] else values | {"rate_key": None, "rate_unit": None}

    def plain(self, values: Mapping[str, Any]) -> Plain:
        plain = super().plain(values)
        is_limited = plain.keys() & {"max_running", "rate", "max_per_key", "policy"}
        return plain if is_limited else {"max_running": None} | plain

    def write(
        self, unit: UnitOfWork, name: str, values: Mapping[str, Any], changed: set[str] | None
    ) -> None:
        asked = {key: values[key] for key in self.fields if changed is None or key in changed}
        if "policy" in asked:  # a new one starts without options
            asked["options"] = values["options"]
        only: Literal["new", "there"] = "new" if changed is None else "there"
        lane_control.save(unit, name, lane_control.read_changes(asked), only=only)

    def remove(self, unit: UnitOfWork, name: str) -> None:
        lane_control.remove(unit, name)


LANES = _Lanes()


def _rate(lane: Lane) -> str | None:
    """Returns the rate as `parse_rate` reads it, to the microsecond."""
    if lane.rate_limit is None or lane.rate_period is None:
        return None
    period = lanes.PERIODS.get(lane.rate_period) or Duration("").plain(lane.rate_period)
    return f"{lane.rate_limit}/{period}"
