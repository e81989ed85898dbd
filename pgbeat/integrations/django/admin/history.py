"""Pages of ticks and jobs: read-only, and as fast with millions of rows as with ten."""

from typing import Any, ClassVar
from uuid import UUID

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html

from pgbeat.integrations.django import databases
from pgbeat.integrations.django.admin.pages import MOST, BoundedList, Page, action
from pgbeat.integrations.django.models import Lane, Schedule, Tick
from pgbeat.jobs.verbs import control

#: The most schedules, tasks or lanes that a search or a filter considers.
_NAMES = 100


class HistoryPage(Page):
    """Shows rows that people don't write."""

    def has_add_permission(self, request: Any) -> bool:
        """Returns `False`: rows can't be added."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Returns whether the user may use the list's actions; no row can be edited."""
        return obj is None and super().has_change_permission(request)

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        """Returns `False`: rows can't be deleted."""
        return False


class TickList(BoundedList):
    """The newest ticks. No index has them by outcome, so filters look at the newest `MOST` only."""

    def get_queryset(self, request: Any, exclude_parameters: Any = None) -> Any:
        """Returns the ticks."""
        if not self.query:  # a search goes by schedule
            newest = Tick.objects.everywhere().order_by("-id").values_list("id", flat=True)
            oldest = newest[MOST - 1 : MOST].first()
            if oldest is not None:
                self.root_queryset: Any = self.root_queryset.filter(id__gte=oldest)
        return super().get_queryset(request, exclude_parameters)


class TickAdmin(HistoryPage):
    """Lists and shows ticks."""

    list_display = ("decided", "schedule", "outcome", "why", "trigger", "job")
    list_filter = ("outcome",)
    filters = ("outcome",)
    search_fields = ("schedule",)
    search_help_text = "Part of a schedule's name"
    console_path, console_key = "schedules", "schedule"
    fields: ClassVar[Any] = (
        "schedule",
        "outcome",
        "trigger",
        "due_at",
        "decided_at",
        "reason",
        "error",
        "job_id",
        "missed",
        "note",
    )

    def get_changelist(self, request: Any, **kwargs: Any) -> Any:
        """Returns the class of the list."""
        return TickList

    def get_search_results(self, request: Any, queryset: Any, term: str) -> tuple[Any, bool]:
        """Returns the ticks of schedules with part of the name."""
        if not term.strip():
            return queryset, False
        ids = Schedule.objects.filter(name__icontains=term.strip()).values_list("id", flat=True)
        return queryset.filter(schedule_id__in=list(ids[:_NAMES])), False

    @admin.display(description="decided")
    def decided(self, row: Any) -> Any:
        """Returns when it was decided."""
        return row.decided_at

    @admin.display(description="reason or error")
    def why(self, row: Any) -> str:
        """Returns the first line of the reason or the error."""
        return _line(row.reason or row.error)

    @admin.display(description="job")
    def job(self, row: Any) -> str:
        """Returns a link to the job."""
        if row.job_id is None:
            return ""
        page = reverse("admin:pgbeat_job_change", args=[row.job_id])
        link: str = format_html('<a href="{}">{}</a>', page, str(row.job_id)[:8])
        return link


class LaneFilter(admin.SimpleListFilter):
    """Filters jobs by their lane."""

    title, parameter_name = "lane", "lane"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        """Returns the lanes."""
        return [(name, name) for name in Lane.objects.values_list("name", flat=True)[:_NAMES]]

    def queryset(self, request: Any, queryset: Any) -> Any:
        """Returns the jobs of the lane."""
        return queryset.filter(lane=self.value()) if self.value() else queryset


retry = action(
    "retry", "jobs", "Retried", lambda unit, row: control.retry(unit, row.id, job_source="user_api")
)
cancel = action("cancel", "jobs", "Cancelled", lambda unit, row: control.cancel(unit, row.id))


class JobAdmin(HistoryPage):
    """Lists and shows jobs, and retries and cancels them."""

    list_display = ("created_at", "named_task", "state", "lane", "attempt", "origin", "why")
    list_filter = ("state", LaneFilter)
    filters = ("state", "task", "lane", "created_by", "template")
    search_fields = ("task",)
    search_help_text = "A job's id, or part of a task's name"
    actions = (retry, cancel)
    console_path = "jobs"
    fields: ClassVar[Any] = (
        "id", "task", "state", "error", "description", "args", "kwargs", "created_by",
        "job_source", "schedule", "due_at", "template", "queue", "lane", "priority", "attempt",
        "max_attempts", "executions", "worker", "created_at", "run_at", "dispatched_at",
        "started_at", "finished_at", "late_at", "paused_at", "awaits_approval", "approved_by",
        "retry_of", "retried_by", "group_id", "labels", "metadata",
    )  # fmt: skip

    def get_search_results(self, request: Any, queryset: Any, term: str) -> tuple[Any, bool]:
        """Returns the job with the id, or those of the app's tasks with part of the name."""
        term = term.strip()
        if not term:
            return queryset, False
        try:
            return queryset.filter(id=UUID(term)), False
        except ValueError:
            app = databases.celery_app()
            names = [name for name in (app.tasks if app else ()) if term.lower() in name.lower()]
            return queryset.filter(task__in=names[:_NAMES] or [term]), False

    @admin.display(description="schedule or owner")
    def origin(self, row: Any) -> str:
        """Returns the schedule that launched it, or who made it."""
        return str(row.schedule or row.created_by)

    @admin.display(description="error")
    def why(self, row: Any) -> str:
        """Returns the first line of the error."""
        return _line(row.error)


def _line(text: str | None) -> str:
    first = (text or "").partition("\n")[0]
    return first if len(first) <= 120 else f"{first[:119]}…"
