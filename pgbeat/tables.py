"""The tables of the schema `pgbeat`, as the migrations leave them."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    Interval,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, REGCLASS, UUID

SCHEMA = "pgbeat"
metadata = MetaData(schema=SCHEMA)


def _time(name: str, *, now: bool = False) -> Column[object]:
    default = text("now()") if now else None
    return Column(name, DateTime(timezone=True), nullable=not now, server_default=default)


def _of_calendar(*names: str) -> str:
    """That times are such as Python can hold: one that it can't would stop every look at all."""
    lowest, highest = "'0001-01-02 00:00+00'", "'9999-12-30 00:00+00'"
    return " AND ".join(f"{name} BETWEEN {lowest} AND {highest}" for name in names)


_TIMETABLES = "cron, every, once_at, solar, rrule, after"

schedules = Table(
    "schedules",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("uid", UUID, nullable=False, server_default=text("gen_random_uuid()")),
    Column("namespace", Text, nullable=False, server_default="default"),
    Column("name", Text, nullable=False),
    Column("launcher", Text, nullable=False, server_default="GenericLauncher"),
    Column("task", Text),
    Column("args", JSONB(none_as_null=True), server_default="[]"),
    Column("kwargs", JSONB(none_as_null=True), nullable=False, server_default="{}"),
    Column("options", JSONB(none_as_null=True), nullable=False, server_default="{}"),
    Column("queue", Text),
    Column("condition_sql", Text),
    Column("cron", Text),
    Column("every", Interval),
    _time("once_at"),
    Column("solar", Text),
    Column("rrule", Text),
    Column("after", Text),
    Column("after_outcome", Text, nullable=False, server_default="completed"),
    Column("timezone", Text),
    _time("starts_at"),
    _time("ends_at"),
    Column("max_runs", Integer),
    Column("run_count", BigInteger, nullable=False, server_default=text("0")),
    Column("jitter", Interval, nullable=False, server_default=text("'0'")),
    Column("calendar", Text),
    Column("catch_up", Text, nullable=False, server_default="latest"),
    Column("catch_up_limit", Integer, nullable=False, server_default="100"),
    Column("grace", Interval),
    Column("overlap", Text, nullable=False, server_default="allow"),
    Column("min_interval", Interval),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("disabled_reason", Text),
    _time("paused_at"),
    Column("max_retries", Integer, nullable=False, server_default="5"),
    Column("retry_base", Interval, nullable=False, server_default=text("'1 minute'")),
    Column("retry_factor", Double, nullable=False, server_default=text("2")),
    Column("retry_cap", Interval, nullable=False, server_default=text("'1 hour'")),
    Column("retry_count", Integer, nullable=False, server_default="0"),
    Column("probe_after", Interval),
    _time("probe_at"),
    _time("next_run"),
    _time("due_at"),
    Column("waiting_for", UUID),
    Column("ended", Integer, nullable=False, server_default="0"),
    _time("last_run"),
    _time("last_success"),
    _time("last_failure"),
    Column("last_error", Text),
    Column("cursor", JSONB(none_as_null=True)),
    Column("owner", Text),
    Column("source", Text, nullable=False, server_default="sql"),
    Column("file_definition", JSONB(none_as_null=True)),
    _time("created_at", now=True),
    _time("updated_at", now=True),
    UniqueConstraint("namespace", "name", name="schedules_name_key"),
    CheckConstraint("namespace ~ '^[A-Za-z0-9_.-]{1,63}$'", name="schedules_namespace"),
    CheckConstraint("length(name) BETWEEN 1 AND 200", name="schedules_name_length"),
    CheckConstraint(
        "launcher <> 'GenericLauncher' OR task IS NOT NULL", name="schedules_task_present"
    ),
    CheckConstraint(
        f"num_nonnulls({_TIMETABLES}) = 1 OR (source = 'code' AND num_nonnulls({_TIMETABLES}) = 0)",
        name="schedules_one_timetable",
    ),
    CheckConstraint(
        "after_outcome IN ('completed', 'failed', 'finished') "
        "AND catch_up IN ('latest', 'all', 'none') "
        "AND overlap IN ('allow', 'skip', 'queue_one', 'cancel_previous')",
        name="schedules_policies",
    ),
    CheckConstraint(
        "max_runs > 0 AND catch_up_limit BETWEEN 1 AND 10000 AND run_count >= 0 "
        "AND jitter BETWEEN '0' AND '366 days' AND grace BETWEEN '0' AND '36500 days' "
        "AND min_interval BETWEEN '0' AND '36500 days' "
        "AND probe_after > '0' AND probe_after <= '36500 days' "
        "AND retry_factor BETWEEN 1 AND 1000",
        name="schedules_limits",
    ),
    CheckConstraint("args IS NOT NULL OR source = 'code'", name="schedules_args_present"),
    CheckConstraint("jsonb_typeof(args) = 'array'", name="schedules_args_array"),
    CheckConstraint("jsonb_typeof(kwargs) = 'object'", name="schedules_kwargs_object"),
    CheckConstraint("jsonb_typeof(options) = 'object'", name="schedules_options_object"),
    CheckConstraint(
        "every > interval '0' AND every <= interval '36500 days'", name="schedules_every_range"
    ),
    CheckConstraint("max_retries >= 0 AND retry_count >= 0", name="schedules_retries_positive"),
    CheckConstraint(
        "retry_base >= interval '0' AND retry_cap >= retry_base "
        "AND retry_cap <= interval '36500 days'",
        name="schedules_backoff",
    ),
    CheckConstraint(
        _of_calendar(
            "next_run",
            "last_run",
            "last_success",
            "last_failure",
            "paused_at",
            "created_at",
            "updated_at",
        ),
        name="schedules_times_of_calendar",
    ),
    CheckConstraint(
        _of_calendar("once_at", "starts_at", "ends_at", "due_at", "probe_at"),
        name="schedules_other_times_of_calendar",
    ),
    CheckConstraint(
        "source IN ('sql', 'cli', 'api', 'file', 'code', 'import')", name="schedules_source"
    ),
    ForeignKeyConstraint(
        ["namespace", "calendar"],
        ["pgbeat.calendars.namespace", "pgbeat.calendars.name"],
        name="schedules_calendar",
    ),
)
#: What is due, and what has no next time yet: the only index that an idle tick touches.
Index(
    "schedules_due",
    schedules.c.namespace,
    schedules.c.next_run,
    postgresql_where=text("enabled AND paused_at IS NULL"),
)
Index(
    "schedules_probe",
    schedules.c.namespace,
    schedules.c.probe_at,
    postgresql_where=text("NOT enabled AND probe_at IS NOT NULL"),
)
Index(
    "schedules_calendar",
    schedules.c.namespace,
    schedules.c.calendar,
    postgresql_where=text("calendar IS NOT NULL"),
)
Index(
    "schedules_after",
    schedules.c.namespace,
    schedules.c.after,
    postgresql_where=text("after IS NOT NULL"),
)

ticks = Table(
    "ticks",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("schedule_id", BigInteger, nullable=False),
    Column("schedule", Text, nullable=False),
    Column("trigger", Text, nullable=False, server_default="timetable"),
    Column("due_at", DateTime(timezone=True), nullable=False),
    _time("decided_at", now=True),
    Column("outcome", Text, nullable=False),
    Column("reason", Text),
    Column("error", Text),
    Column("job_id", UUID),
    Column("missed", Integer, nullable=False, server_default="0"),
    Column("note", Text),
    # One decision for a due time. This is what makes a launch happen once.
    UniqueConstraint("schedule_id", "due_at", "trigger", name="ticks_one_decision"),
    CheckConstraint("outcome IN ('launched', 'skipped', 'failed')", name="ticks_outcome"),
    CheckConstraint(
        "trigger IN ('timetable', 'retry', 'manual', 'after', 'backfill')", name="ticks_trigger"
    ),
    CheckConstraint("(outcome = 'launched') = (job_id IS NOT NULL)", name="ticks_launched_job"),
    CheckConstraint("(outcome = 'skipped') = (reason IS NOT NULL)", name="ticks_skipped_reason"),
    CheckConstraint("(outcome = 'failed') = (error IS NOT NULL)", name="ticks_failed_error"),
)

calendars = Table(
    "calendars",
    metadata,
    Column("namespace", Text, primary_key=True, server_default="default"),
    Column("name", Text, primary_key=True),
    Column("definition", JSONB, nullable=False),
    _time("created_at", now=True),
    _time("updated_at", now=True),
    CheckConstraint("namespace ~ '^[A-Za-z0-9_.-]{1,63}$'", name="calendars_namespace"),
    CheckConstraint("length(name) BETWEEN 1 AND 200", name="calendars_name_length"),
    CheckConstraint("name !~ '[[:cntrl:]/]' AND btrim(name) = name", name="calendars_name_plain"),
    CheckConstraint("jsonb_typeof(definition) = 'object'", name="calendars_definition_object"),
)

namespaces = Table(
    "namespaces",
    metadata,
    Column("name", Text, primary_key=True),
    Column("timezone", Text, nullable=False),
    CheckConstraint("name ~ '^[A-Za-z0-9_.-]{1,63}$'", name="namespaces_name"),
)

JOB_STATES = (
    "pending",
    "scheduled",
    "running",
    "paused",
    "completed",
    "failed",
    "cancelled",
    "skipped",
)
JOB_SOURCES = ("user_cli", "user_api", "scheduled_task", "system")

jobs = Table(
    "jobs",
    metadata,
    Column("id", UUID, primary_key=True),
    Column("schedule_id", BigInteger),
    Column("schedule", Text),
    _time("due_at"),
    Column("task", Text, nullable=False),
    Column("args", JSONB(none_as_null=True)),
    Column("kwargs", JSONB(none_as_null=True)),
    Column("queue", Text),
    Column("state", Text, nullable=False, server_default="pending"),
    Column("job_source", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("is_system_job", Boolean, nullable=False),
    _time("created_at", now=True),
    _time("started_at"),
    _time("finished_at"),
    Column("worker", Text),
    Column("error", Text),
    CheckConstraint(
        "state IN ('pending', 'scheduled', 'running', 'paused', 'completed', 'failed', "
        "'cancelled', 'skipped')",
        name="jobs_state",
    ),
    CheckConstraint(
        "job_source IN ('user_cli', 'user_api', 'scheduled_task', 'system')", name="jobs_source"
    ),
)
Index("jobs_by_schedule", jobs.c.schedule_id, jobs.c.created_at)
Index(
    "jobs_unfinished",
    jobs.c.schedule_id,
    postgresql_where=text("state IN ('pending', 'scheduled', 'running', 'paused')"),
)

consumers = Table(
    "consumers",
    metadata,
    Column("id", Integer, Identity(cycle=True), primary_key=True),
    Column("tables", REGCLASS, nullable=False),
    Column("name", Text, nullable=False),
    _time("started_at", now=True),
    _time("lease_until"),
)
