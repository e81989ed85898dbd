"""The tables of the schema `pgbeat`, as the migrations leave them."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
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


schedules = Table(
    "schedules",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("uid", UUID, nullable=False, server_default=text("gen_random_uuid()")),
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
    Column("timezone", Text),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("disabled_reason", Text),
    _time("paused_at"),
    Column("max_retries", Integer, nullable=False, server_default="5"),
    Column("retry_base", Interval, nullable=False, server_default=text("'1 minute'")),
    Column("retry_cap", Interval, nullable=False, server_default=text("'1 hour'")),
    Column("retry_count", Integer, nullable=False, server_default="0"),
    _time("next_run"),
    _time("last_run"),
    _time("last_success"),
    _time("last_failure"),
    Column("last_error", Text),
    Column("cursor", JSONB(none_as_null=True)),
    Column("owner", Text),
    Column("source", Text, nullable=False, server_default="sql"),
    _time("created_at", now=True),
    _time("updated_at", now=True),
    UniqueConstraint("name", name="schedules_name_key"),
    CheckConstraint("length(name) BETWEEN 1 AND 200", name="schedules_name_length"),
    CheckConstraint(
        "launcher <> 'GenericLauncher' OR task IS NOT NULL", name="schedules_task_present"
    ),
    CheckConstraint(
        "num_nonnulls(cron, every) = 1 OR (source = 'code' AND num_nonnulls(cron, every) = 0)",
        name="schedules_one_timetable",
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
        " AND ".join(
            f"{name} BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00'"
            for name in (
                "next_run",
                "last_run",
                "last_success",
                "last_failure",
                "paused_at",
                "created_at",
                "updated_at",
            )
        ),
        name="schedules_times_of_calendar",
    ),
    CheckConstraint("source IN ('sql', 'cli', 'api', 'file', 'code')", name="schedules_source"),
)
#: What is due, and what has no next time yet: the only index that an idle tick touches.
Index(
    "schedules_due",
    schedules.c.next_run,
    postgresql_where=text("enabled AND paused_at IS NULL"),
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
    # One decision for a due time. This is what makes a launch happen once.
    UniqueConstraint("schedule_id", "due_at", name="ticks_one_decision"),
    CheckConstraint("outcome IN ('launched', 'skipped', 'failed')", name="ticks_outcome"),
    CheckConstraint("trigger IN ('timetable', 'retry', 'manual')", name="ticks_trigger"),
    CheckConstraint("(outcome = 'launched') = (job_id IS NOT NULL)", name="ticks_launched_job"),
    CheckConstraint("(outcome = 'skipped') = (reason IS NOT NULL)", name="ticks_skipped_reason"),
    CheckConstraint("(outcome = 'failed') = (error IS NOT NULL)", name="ticks_failed_error"),
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

consumers = Table(
    "consumers",
    metadata,
    Column("id", Integer, Identity(cycle=True), primary_key=True),
    Column("tables", REGCLASS, nullable=False),
    Column("name", Text, nullable=False),
    _time("started_at", now=True),
    _time("lease_until"),
)
