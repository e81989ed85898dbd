"""Pages of lanes."""

from collections.abc import Mapping
from typing import Any, ClassVar

from django.contrib import admin

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.integrations.django.admin import changes
from pgbeat.integrations.django.admin.forms import CheckedForm
from pgbeat.integrations.django.admin.pages import Page, action
from pgbeat.jobs.verbs import lane_control
from pgbeat.timetables import span

_STATE = ("paused_at", "created_at", "updated_at")


class LaneForm(CheckedForm):
    """A lane's values."""

    def checked(self, values: Mapping[str, Any], *, dry_run: bool) -> Any:
        """Saves the lane, or checks it. Raises `PgbeatError`."""
        rest = dict(values)
        name = rest.pop("name") if self.is_new else self.instance.name
        with changes.work(self.request) as unit, unit.transaction(dry_run=dry_run):
            only: Any = "new" if self.is_new else "there"
            shown = {"max_running": None} if self.is_new else {}  # empty for no limit
            saved = lane_control.save(unit, name, shown | rest, only=only)
        return saved.lane


pause = action("pause", "lanes", "Paused", lambda unit, row: lane_control.pause(unit, row.name))
resume = action("resume", "lanes", "Resumed", lambda unit, row: lane_control.resume(unit, row.name))


class LaneAdmin(Page):
    """Lists, adds, changes and deletes lanes."""

    form = LaneForm
    list_display = ("name", "max_running", "rate", "fair_by", "policy", "paused_at")
    search_fields = ("name",)
    actions = (pause, resume)
    console_path = "lanes"
    fields: ClassVar[Any] = (
        "name",
        "max_running",
        "rate_limit",
        "rate_period",
        "rate_key",
        "rate_unit",
        "fair_by",
        "max_per_key",
        "policy",
        "options",
    )

    @admin.display(description="rate")
    def rate(self, row: Any) -> str:
        """Returns the rate, such as `10 in 1 min`."""
        return "" if row.rate_limit is None else f"{row.rate_limit} in {span(row.rate_period)}"

    def get_fields(self, request: Any, obj: Any = None) -> Any:
        """Returns the fields, with the state of an existing lane."""
        return self.fields if obj is None else (*self.fields, *_STATE)

    def get_readonly_fields(self, request: Any, obj: Any = None) -> Any:
        """Returns the fields that can't be changed: the name, once it exists."""
        return () if obj is None else ("name", *_STATE)

    def remove(self, unit: UnitOfWork, row: Any) -> None:
        """Deletes a lane. Raises `InvalidJob` if it is in use."""
        lane_control.remove(unit, row.name)
