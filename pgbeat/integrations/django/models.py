"""Models of pgbeat's rows, for reading: the admin site's lists and pages.

pgbeat's tables are its own: Alembic's migrations make them (`pgbeat.database.migrations`), and its
functions change them, so the models are unmanaged and refuse to be saved or deleted.
"""

from datetime import timedelta
from typing import Any, ClassVar, get_args

from django.db import models

from pgbeat.database.tables import JOB_STATES
from pgbeat.integrations.django import databases, schema
from pgbeat.schedules import AfterMatch, AfterOutcome, CatchUp, Overlap

#: The permissions of the console's administrators, and of its viewers. Others of the staff see and
#: control their own jobs.
ADMINISTER, OBSERVE = "pgbeat.administer", "pgbeat.observe"


class Rows(models.Manager):
    """Reads the rows of the project's namespace, from pgbeat's database."""

    def get_queryset(self) -> Any:
        """Returns the rows."""
        return self.everywhere().filter(namespace=schema.settings().namespace)

    def everywhere(self) -> Any:
        """Returns the rows of all namespaces."""
        return super().get_queryset().using(databases.alias())


class Ticks(Rows):
    """Reads ticks, whose namespace is their schedule's. Those of deleted schedules are left out."""

    def get_queryset(self) -> Any:
        """Returns the rows."""
        return self.everywhere().filter(schedule_id__in=Schedule.objects.values("id"))


class Row(models.Model):
    """A row that only pgbeat's functions change."""

    objects: ClassVar[Any] = Rows()

    class Meta:
        """No table."""

        abstract = True

    def __str__(self) -> str:
        return str(getattr(self, "name", self.pk))

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Raises `TypeError`."""
        raise TypeError(f"a {self._meta.verbose_name} is changed by pgbeat's functions")

    def delete(self, *args: Any, **kwargs: Any) -> Any:
        """Raises `TypeError`."""
        raise TypeError(f"a {self._meta.verbose_name} is deleted by pgbeat's functions")


def _text(**more: Any) -> Any:
    return models.CharField(**{"null": True, "blank": True, **more})


def _choice(*names: str, **more: Any) -> Any:
    return _text(null=False, choices=[(name, name.replace("_", " ")) for name in names], **more)


def _moment(label: str = "") -> Any:
    return models.DateTimeField(label or None, null=True, blank=True)


def _length(**more: Any) -> Any:
    return models.DurationField(**{"null": True, "blank": True, **more})


def _whole(**more: Any) -> Any:
    return models.IntegerField(**{"null": True, "blank": True, **more})


def _json(default: Any = dict) -> Any:
    return models.JSONField(default=default, blank=True)


class Schedule(Row):
    """What to launch, and when."""

    id = models.BigAutoField(primary_key=True)
    namespace = models.CharField()
    name = models.CharField(max_length=200, help_text="such as nightly-report")
    description = models.TextField(null=True, blank=True)
    owner = _text(max_length=200)
    labels = _json()
    metadata = _json()
    source = models.CharField()

    task = _text(help_text="the name of a task of the Celery app, or empty with a template")
    args = models.JSONField("arguments", default=list, blank=True, null=True)
    kwargs = models.JSONField("keyword arguments", default=dict, blank=True)
    options = models.JSONField("publish options", default=dict, blank=True)
    queue = _text(help_text="empty: as the app routes it")
    launcher = models.CharField(default="GenericLauncher", blank=True)
    job_policy = models.JSONField(
        default=dict,
        blank=True,
        help_text='how its jobs are made: {"lane": "gpu", "max_attempts": 5}',
    )
    condition_sql = models.TextField(
        "condition in SQL",
        null=True,
        blank=True,
        help_text="it launches if the first value is true",
    )

    cron = models.TextField(null=True, blank=True, help_text="0 */6 * * *; may have several lines")
    every = _length(help_text="15 min")
    once_at = _moment("once at")
    solar = _text(help_text="sunset 59.91 10.75")
    rrule = _text(help_text="FREQ=WEEKLY;BYDAY=MO")
    after = models.TextField(
        null=True, blank=True, help_text="a schedule whose jobs launch this one; or several lines"
    )
    after_outcome = _choice(*get_args(AfterOutcome), default="completed")
    after_match = _choice(*get_args(AfterMatch), default="all", help_text="of several")
    timezone = _text(verbose_name="time zone", help_text="such as Europe/Oslo; empty: the app's")
    starts_at = _moment("not before")
    ends_at = _moment("not after")
    max_runs = _whole(verbose_name="most runs")
    run_count = models.BigIntegerField("runs", default=0)
    jitter = _length(null=False, default=timedelta(0), help_text="delays it by up to: 2 min")
    calendar = _text(help_text="for times to skip")

    catch_up = _choice(*get_args(CatchUp), default="latest", help_text="of missed times")
    catch_up_limit = models.IntegerField("of all, at most", default=100, blank=True)
    grace = _length(help_text="how late it may launch")
    overlap = _choice(
        *get_args(Overlap), default="allow", help_text="while its previous job is unfinished"
    )
    min_interval = _length(help_text="between two launches")
    max_retries = _whole(null=False, help_text="then it is disabled; empty: as the settings say")
    retry_base = _length(null=False, verbose_name="first retry after")
    retry_factor = models.FloatField("then times", default=2.0, blank=True)
    retry_cap = _length(null=False, verbose_name="but no later than")
    probe_after = _length(help_text="once disabled, try after")
    pause_after_failures = _whole(help_text="so many failed jobs in a row; empty: never")
    fresh_within = _length(help_text="it is stale if no job completes for so long; empty: never")
    check_in_url = _text(max_length=2000, help_text="requested for each run; empty: none")

    enabled = models.BooleanField(default=True)
    disabled_reason = _text()
    completed_at = _moment()
    paused_at = _moment()
    paused_reason = _text()
    stale_since = _moment()
    retry_count = models.IntegerField("failures in a row", default=0)
    next_run = _moment()
    last_run = _moment()
    last_success = _moment()
    last_failure = _moment()
    last_error = models.TextField(null=True, blank=True)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        """Its table, and the rights in the console."""

        managed = False
        db_table = '"pgbeat"."schedules"'
        ordering = ("name",)
        permissions = (
            ("administer", "Can administer everything in pgbeat's console"),
            ("observe", "Can see everything in pgbeat's console, and change nothing"),
        )

    @property
    def state(self) -> str:
        """Returns `disabled`, `completed`, `paused`, `retrying` or `active`."""
        if not self.enabled:
            return "disabled" if self.completed_at is None else "completed"
        if self.paused_at is not None:
            return "paused"
        return "retrying" if self.retry_count else "active"


class Tick(Row):
    """A decision on a due schedule."""

    id = models.BigAutoField(primary_key=True)
    schedule_id = models.BigIntegerField()
    schedule = models.CharField()
    trigger = models.CharField()
    due_at = models.DateTimeField()
    decided_at = models.DateTimeField()
    outcome = _choice("launched", "skipped", "failed")
    reason = models.TextField(null=True)
    error = models.TextField(null=True)
    job_id = models.UUIDField(null=True)
    missed = models.IntegerField("missed times")
    note = models.TextField(null=True)

    objects: ClassVar[Any] = Ticks()

    class Meta:
        """Its table."""

        managed = False
        db_table = '"pgbeat"."ticks"'
        ordering = ("-id",)
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.schedule}, {self.due_at:%Y-%m-%d %H:%M:%S}"


class Job(Row):
    """One unit of work. Its id is Celery's task id."""

    id = models.UUIDField(primary_key=True)
    namespace = models.CharField()
    task = models.CharField()
    state = _choice(*JOB_STATES)
    description = models.TextField(null=True)
    labels = _json()
    metadata = _json()
    args = models.JSONField("arguments", null=True)
    kwargs = models.JSONField("keyword arguments", null=True)
    queue = models.CharField(null=True)
    template = models.CharField(null=True)
    lane = models.CharField(null=True)
    priority = models.SmallIntegerField()
    job_source = models.CharField("source")
    created_by = models.CharField()
    schedule = models.CharField(null=True)
    due_at = _moment()
    run_at = _moment("not before")
    attempt = models.IntegerField()
    max_attempts = models.IntegerField()
    retry_of = models.UUIDField(null=True)
    retried_by = models.UUIDField(null=True)
    group_id = models.UUIDField("group", null=True)
    paused_at = _moment()
    awaits_approval = models.BooleanField()
    approved_by = models.CharField(null=True)
    created_at = models.DateTimeField("created")
    dispatched_at = _moment()
    started_at = _moment()
    finished_at = _moment()
    late_at = _moment("late since")
    worker = models.CharField(null=True)
    error = models.TextField(null=True)
    executions = models.IntegerField()

    class Meta:
        """Its table."""

        managed = False
        db_table = '"pgbeat"."jobs"'
        ordering = ("-created_at", "-id")
        default_permissions = ("view", "change")


class Lane(Row):
    """A limit on what runs at once, with a waiting line in front of it."""

    name = models.CharField(primary_key=True, max_length=200, help_text="such as gpu")
    namespace = models.CharField()
    max_running = _whole(verbose_name="slots", help_text="empty: no limit")
    rate_limit = _whole(help_text="so many jobs a period")
    rate_period = _length(help_text="1 min")
    rate_key = _text(help_text="each task, tag, created_by or kwargs.NAME has its own rate")
    rate_unit = _text(help_text="the resource that the rate counts, such as tokens; empty: jobs")
    fair_by = _text(
        help_text="jobs of each task, created_by, tag, tag:PREFIX or kwargs.NAME take turns"
    )
    max_per_key = _whole(verbose_name="slots of each", help_text="empty: no limit")
    policy = _text(help_text="the name of a concurrency policy")
    options = models.JSONField("the policy's options", default=dict, blank=True)
    paused_at = _moment("paused")
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        """Its table."""

        managed = False
        db_table = '"pgbeat"."lanes"'
        ordering = ("name",)
