"""Pages of schedules."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from django.contrib import admin

from pgbeat.beat.verbs import control as beat_control
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.errors import PgbeatError
from pgbeat.integrations.django.admin import changes
from pgbeat.integrations.django.admin.forms import CheckedForm
from pgbeat.integrations.django.admin.pages import Page, action
from pgbeat.schedules import control, mistakes
from pgbeat.schedules.model import TIMETABLES
from pgbeat.timetables import cron_on_one_line, span

_ABOUT = ("description", "owner", "labels", "metadata")
_WHAT = ("task", "args", "kwargs", "condition_sql", "job_policy")
_BOUNDS = ("starts_at", "ends_at", "max_runs", "jitter", "calendar", "after_outcome", "after_match")
_BETWEEN = ("overlap", "catch_up", "catch_up_limit", "grace", "min_interval")
_FAILS = (
    "max_retries",
    "retry_base",
    "retry_factor",
    "retry_cap",
    "probe_after",
    "pause_after_failures",
    "fresh_within",
    "check_in_url",
)
_HOW = ("queue", "launcher", "options")
_STATE = (
    "state", "next_run", "last_run", "last_success", "last_failure", "last_error",
    "retry_count", "run_count", "disabled_reason", "paused_at", "paused_reason", "stale_since",
    "source", "created_at", "updated_at",
)  # fmt: skip


class ScheduleForm(CheckedForm):
    """A schedule's values."""

    def checked(self, values: Mapping[str, Any], *, dry_run: bool) -> Any:
        """Saves the schedule, or checks it. Raises `PgbeatError`."""
        rest = dict(values)
        name = rest.pop("name") if self.is_new else self.instance.name
        return changes.save_schedule(self.request, name, rest, is_new=self.is_new, dry_run=dry_run)

    def without_errors(self, values: dict[str, Any]) -> dict[str, Any]:
        """Returns the values, with harmless ones where a schedule needs one."""
        return mistakes.without(values, set(self.errors), is_new=self.is_new)


class StateFilter(admin.SimpleListFilter):
    """Filters schedules by their state."""

    title, parameter_name = "state", "state"
    _CONDITIONS: ClassVar[Any] = {
        "active": {"enabled": True, "paused_at__isnull": True},
        "paused": {"enabled": True, "paused_at__isnull": False},
        "disabled": {"enabled": False, "completed_at__isnull": True},
        "completed": {"enabled": False, "completed_at__isnull": False},
    }

    def lookups(self, request: Any, model_admin: Any) -> Iterator[tuple[str, str]]:
        """Yields the states."""
        return ((name, name) for name in self._CONDITIONS)

    def queryset(self, request: Any, queryset: Any) -> Any:
        """Returns the schedules with the state."""
        return queryset.filter(**self._CONDITIONS.get(self.value(), {}))


def _trigger(unit: UnitOfWork, row: Any) -> None:
    tick = beat_control.trigger(unit, row.name, job_source="user_api").tick
    if tick.outcome != "launched":
        past = "was skipped" if tick.outcome == "skipped" else "failed"
        raise PgbeatError(f"Schedule '{row.name}' {past}: {tick.reason or tick.error}")


def _switch(name: str, verb: Callable[[UnitOfWork, str], object]) -> Any:
    past = f"{name.removesuffix('e').capitalize()}ed"
    return action(name, "schedules", past, lambda unit, row: verb(unit, row.name))


class ScheduleAdmin(Page):
    """Lists, adds, changes and deletes schedules."""

    form = ScheduleForm
    list_display = (
        "name",
        "state",
        "timetable",
        "named_task",
        "next_run",
        "last_run",
        "last_failure",
    )
    list_filter = (StateFilter,)
    search_fields = ("name", "task")
    filters = ("state",)
    actions = (
        action("trigger", "schedules now", "Launched", _trigger, is_whole=False),
        _switch("pause", control.pause),
        _switch("resume", control.resume),
        _switch("enable", control.enable),
        _switch("disable", control.disable),
    )
    console_path, console_key = "schedules", "name"
    readonly_fields = _STATE
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("name",)}),
        (
            "When",
            {"fields": (*TIMETABLES, "timezone"), "description": "Fill in one of the first six."},
        ),
        ("What", {"fields": _WHAT}),
        ("Start and end", {"fields": _BOUNDS, "classes": ("collapse",)}),
        ("Overlap and skipping", {"fields": _BETWEEN, "classes": ("collapse",)}),
        ("If launching fails", {"fields": _FAILS, "classes": ("collapse",)}),
        ("How it is launched", {"fields": _HOW, "classes": ("collapse",)}),
        ("What it is for", {"fields": _ABOUT, "classes": ("collapse",)}),
    )

    @admin.display(description="timetable")
    def timetable(self, row: Any) -> str:
        """Returns the timetable in words."""
        for name in TIMETABLES:
            value = getattr(row, name)
            if name == "cron" and value is not None:
                return cron_on_one_line(str(value))
            if value is not None:
                text = (
                    span(value, units=4) if name == "every" else ", ".join(str(value).split("\n"))
                )
                return f"{name.replace('_at', '')} {text}"
        return "in the app's code"

    def get_fieldsets(self, request: Any, obj: Any = None) -> Any:
        """Returns the fields, with the state of an existing schedule."""
        if obj is None:
            return self.fieldsets
        return (*self.fieldsets, ("State", {"fields": _STATE}))

    def get_readonly_fields(self, request: Any, obj: Any = None) -> Any:
        """Returns the fields that can't be changed: the name, once it exists."""
        return _STATE if obj is None else ("name", *_STATE)

    def remove(self, unit: UnitOfWork, row: Any) -> None:
        """Deletes a schedule; its ticks and jobs stay until they are pruned."""
        control.remove(unit, row.name)
