"""The columns of the tables in the schema `pgbeat`, for queries.

The migrations have the constraints, indexes, partitions and triggers.
"""

from sqlalchemy import (
    JSON,
    REAL,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, UUID

SCHEMA = "pgbeat"
metadata = MetaData(schema=SCHEMA)


def _time(name: str, *, now: bool = False) -> Column[object]:
    default = text("now()") if now else None
    return Column(name, DateTime(timezone=True), nullable=not now, server_default=default)


def _namespace(*, primary_key: bool = False) -> Column[object]:
    return Column(
        "namespace", Text, primary_key=primary_key, nullable=False, server_default="default"
    )


def _json(name: str, default: str = "{}") -> Column[object]:
    return Column(name, JSONB, nullable=False, server_default=default)


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

schedules = Table(
    "schedules",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("uid", UUID, nullable=False, server_default=text("gen_random_uuid()")),
    _namespace(),
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
    _time("completed_at"),
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
    Column("upstream_ended", Integer, nullable=False, server_default="0"),
    Column("out_of_turn", Boolean, nullable=False, server_default=text("false")),
    _time("last_run"),
    _time("last_success"),
    _time("last_failure"),
    Column("last_error", Text),
    Column("cursor", JSONB(none_as_null=True)),
    Column("owner", Text),
    Column("source", Text, nullable=False, server_default="sql"),
    Column("app", Text),
    Column("file_definition", JSONB(none_as_null=True)),
    _json("job_policy"),
    _time("created_at", now=True),
    _time("updated_at", now=True),
    Column("pause_after_failures", Integer),
    Column("check_in_url", Text),
    Column("paused_reason", Text),
    _time("failures_from"),
    Column("description", Text),
    _json("labels"),
    _json("metadata"),
    ForeignKeyConstraint(
        ["namespace", "calendar"],
        ["pgbeat.calendars.namespace", "pgbeat.calendars.name"],
        name="schedules_calendar",
    ),
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
    #: The jobs that were launched together with `job_id`.
    Column("more_job_ids", ARRAY(UUID)),
)

calendars = Table(
    "calendars",
    metadata,
    _namespace(primary_key=True),
    Column("name", Text, primary_key=True),
    Column("definition", JSONB, nullable=False),
    _time("created_at", now=True),
    _time("updated_at", now=True),
)

namespaces = Table(
    "namespaces",
    metadata,
    Column("name", Text, primary_key=True),
    Column("timezone", Text, nullable=False),
    Column("retention_days", Double),
    Column("retention_count", Integer),
)

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
    _namespace(),
    _json("options"),
    Column("template", Text),
    _time("run_at"),
    _time("dispatched_at"),
    Column("lane", Text),
    Column("priority", SmallInteger, nullable=False, server_default=text("0")),
    Column("position", Numeric),
    Column("tags", ARRAY(Text), nullable=False, server_default="{}"),
    _json("resources"),
    Column("attempt", Integer, nullable=False, server_default="1"),
    Column("max_attempts", Integer, nullable=False, server_default="1"),
    Column("retry_base", Interval, nullable=False, server_default=text("'1 minute'")),
    Column("retry_cap", Interval, nullable=False, server_default=text("'1 hour'")),
    Column("keeps_id", Boolean, nullable=False, server_default=text("false")),
    Column("retry_of", UUID),
    Column("retried_by", UUID),
    Column("group_id", UUID),
    Column("group_position", Integer),
    Column("is_blocked", Boolean, nullable=False, server_default=text("false")),
    Column("unfinished_parents", Integer, nullable=False, server_default=text("0")),
    Column("unique_key", Text),
    _time("paused_at"),
    Column("awaits_approval", Boolean, nullable=False, server_default=text("false")),
    Column("approved_by", Text),
    _time("approved_at"),
    Column("cancel_requested_by", Text),
    _time("cancel_requested_at"),
    Column("cancel_reason", Text),
    Column("checkpoint", JSONB(none_as_null=True)),
    Column("requires_approval", Boolean, nullable=False, server_default=text("false")),
    Column("trigger", Text),
    _time("interval_start"),
    _time("interval_end"),
    Column("description", Text),
    _json("labels"),
    _json("metadata"),
    Column("run_key", Text),
    _time("elsewhere_at"),
    _time("must_start_by"),
    _time("must_end_by"),
    _time("next_deadline"),
    _time("late_at"),
    Column("missed_deadlines", ARRAY(Text), nullable=False, server_default="{}"),
    Column("executions", Integer, nullable=False, server_default="0"),
    Column("message", JSONB(none_as_null=True)),
    Column("fair_key", Text, nullable=False, server_default=""),
    Column("root_id", UUID),
    Column("parent_id", UUID),
    Column("canvas", JSONB(none_as_null=True)),
    Column("callback_of", UUID),
)

executions = Table(
    "executions",
    metadata,
    Column("id", UUID, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("job_id", UUID, nullable=False),
    Column("schedule_id", BigInteger),
    Column("number", Integer, nullable=False),
    Column("state", Text, nullable=False, server_default="running"),
    Column("lost", Boolean, nullable=False, server_default=text("false")),
    Column("retry_attempt", Integer, nullable=False, server_default="0"),
    Column("worker", Text, nullable=False),
    Column("worker_id", Integer),
    Column("pid", Integer),
    Column("acks_late", Boolean, nullable=False, server_default=text("false")),
    _time("started_at", now=True),
    _time("finished_at"),
    Column("duration_ms", Double),
    Column("cpu_time_ms", Double),
    Column("memory_peak_mb", Double),
    Column("progress_done", Double),
    Column("progress_total", Double),
    Column("progress_message", Text),
    Column("result", Text),
    Column("error", Text),
    Column("traceback", Text),
    _json("metadata"),
    Column("log", JSON(none_as_null=True)),
    _time("recorded_at"),
)

counters = Table(
    "counters",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("metric", Text, primary_key=True),
    Column("label", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("value", Double, nullable=False),
)

rollups = Table(
    "rollups",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("at", DateTime(timezone=True), primary_key=True),
    *(
        Column(name, BigInteger, nullable=False, server_default=text("0"))
        for name in ("completed", "failed", "cancelled", "skipped")
    ),
    Column("waiting", ARRAY(Integer), nullable=False, server_default=text("'{}'")),
    Column("running", ARRAY(Integer), nullable=False, server_default=text("'{}'")),
    Column("depth", BigInteger, nullable=False, server_default=text("0")),
)

untracked_tasks = Table(
    "untracked_tasks",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("at", DateTime(timezone=True), primary_key=True),
    Column("task", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
)

error_rollups = Table(
    "error_rollups",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("at", DateTime(timezone=True), primary_key=True),
    Column("place", SmallInteger, primary_key=True),
    Column("error", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("first_at", DateTime(timezone=True), nullable=False),
    Column("last_at", DateTime(timezone=True), nullable=False),
    Column("job_id", UUID, nullable=False),
    Column("schedules", ARRAY(Text), nullable=False, server_default=text("'{}'")),
)

rollup_progress = Table(
    "rollup_progress",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("counted_until", DateTime(timezone=True), nullable=False),
    Column("settled_until", DateTime(timezone=True), nullable=False),
)

workers = Table(
    "workers",
    metadata,
    Column("id", Integer, Identity(cycle=True), primary_key=True),
    Column("name", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("pool", Text),
    Column("concurrency", Integer),
    _time("started_at", now=True),
    _time("missing_since"),
    Column("namespace", Text),
    Column("tasks", ARRAY(Text)),
    Column("host", Text),
    Column("versions", JSONB),
    Column("queues", ARRAY(Text)),
    Column("memory_mb", REAL),
    Column("cpu", REAL),
    _time("reported_at"),
    _time("alive_until"),
)

message_ends = Table(
    "message_ends",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("job_id", UUID, nullable=False),
    Column("how", Text, nullable=False),
    Column("queue", Text),
    Column("consumer_id", Integer),
    Column("worker_id", Integer),
    Column(
        "ended_at",
        DateTime(timezone=True),
        nullable=False,
        server_default=text("clock_timestamp()"),
    ),
)

lanes = Table(
    "lanes",
    metadata,
    _namespace(primary_key=True),
    Column("name", Text, primary_key=True),
    Column("max_running", Integer),
    Column("policy", Text),
    _json("options"),
    Column("rate_limit", Integer),
    Column("rate_period", Interval),
    Column("rate_key", Text),
    Column("rate_unit", Text),
    Column("temporary_limit", Integer),
    Column("temporary_period", Interval),
    _time("temporary_until"),
    Column("fair_by", Text),
    Column("max_per_key", Integer),
    _json("turns"),
    _time("paused_at"),
    _time("created_at", now=True),
    _time("updated_at", now=True),
)

reservations = Table(
    "reservations",
    metadata,
    Column("id", Integer, Identity(cycle=True), primary_key=True),
    _namespace(),
    Column("lane", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("tags", ARRAY(Text), nullable=False, server_default="{}"),
    _json("resources"),
    Column("created_by", Text, nullable=False),
    _time("created_at", now=True),
    _time("started_at"),
)

dependencies = Table(
    "dependencies",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("job_id", UUID, nullable=False),
    Column("parent_id", UUID, nullable=False),
    Column("needs", Text, nullable=False, server_default="completed"),
    Column("outcome", Text),
    _time("created_at", now=True),
)

groups = Table(
    "groups",
    metadata,
    Column("id", UUID, primary_key=True, server_default=text("gen_random_uuid()")),
    _namespace(),
    Column("name", Text),
    Column("mode", Text, nullable=False, server_default="parallel"),
    Column("on_failure", Text, nullable=False, server_default="stop"),
    Column("state", Text, nullable=False, server_default="running"),
    Column("job_source", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("is_system_job", Boolean, nullable=False, server_default=text("false")),
    _time("created_at", now=True),
    _time("finished_at"),
    Column("cancelled_by", Text),
    _time("cancelled_at"),
    Column("callback_id", UUID),
    Column("callback_outcome", Text, nullable=False, server_default="finished"),
)

templates = Table(
    "templates",
    metadata,
    _namespace(primary_key=True),
    Column("name", Text, primary_key=True),
    Column("description", Text),
    Column("task", Text, nullable=False),
    _json("args", "[]"),
    _json("kwargs"),
    _json("options"),
    Column("queue", Text),
    _json("job_policy"),
    Column("created_by", Text),
    _time("created_at", now=True),
    _time("updated_at", now=True),
)

EVENTS = (
    "job.run.completed",
    "job.run.failed",
    "job.run.skipped",
    "job.failed",
    "job.late",
    "group.ended",
    "schedule.disabled",
    "schedule.paused",
    "tick.failed",
    "tick.skipped",
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    _namespace(),
    Column("name", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("secret", Text, nullable=False),
    Column("previous_secret", Text),
    _time("previous_until"),
    Column("events", ARRAY(Text), nullable=False),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("disabled_reason", Text),
    Column("slots", SmallInteger, nullable=False, server_default=text("8")),
    Column("schedule_id", BigInteger),
    Column("created_by", Text),
    _time("created_at", now=True),
    _time("updated_at", now=True),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("id", UUID, primary_key=True, server_default=text("gen_random_uuid()")),
    Column(
        "webhook_id",
        BigInteger,
        ForeignKey("pgbeat.webhooks.id", ondelete="CASCADE"),
        nullable=False,
    ),
    Column("event", Text, nullable=False),
    Column("payload", JSONB, nullable=False),
    Column("state", Text, nullable=False, server_default="pending"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("next_at", DateTime(timezone=True), server_default=text("now()")),
    _time("sent_at"),
    _json("log", "[]"),
    _time("created_at", now=True),
    _time("finished_at"),
)

#: When an event last reported a skip of a schedule, and how many skips there were since.
skip_notices = Table(
    "skip_notices",
    metadata,
    Column("schedule_id", BigInteger, primary_key=True, autoincrement=False),
    Column("sent_at", DateTime(timezone=True), nullable=False),
    Column("unsent", BigInteger, nullable=False, server_default=text("0")),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    _namespace(),
    Column("actor", Text, nullable=False),
    Column("scope", Text, nullable=False, server_default="user"),
    Column("note", Text),
    Column("hash", LargeBinary, nullable=False),
    Column("created_by", Text, nullable=False),
    _time("created_at", now=True),
    _time("expires_at"),
    _time("revoked_at"),
    _time("last_used_at"),
    Column("is_session", Boolean, nullable=False, server_default=text("false")),
)

sign_in_links = Table(
    "sign_in_links",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    _namespace(),
    Column("actor", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    _namespace(),
    Column("at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    Column("actor", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("verb", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("before", JSONB(none_as_null=True)),
    Column("after", JSONB(none_as_null=True)),
)

consumers = Table(
    "consumers",
    metadata,
    Column("id", Integer, Identity(cycle=True), primary_key=True),
    Column("name", Text, nullable=False),
    _time("started_at", now=True),
    _time("lease_until"),
)

results = Table(
    "results",
    metadata,
    Column("task_id", Text, primary_key=True),
    Column("status", Text, nullable=False),
    Column("body", LargeBinary),
    Column("content_type", Text, nullable=False),
    Column("content_encoding", Text, nullable=False),
    Column("traceback", Text),
    Column("children", JSONB(none_as_null=True)),
    Column("group_id", Text),
    Column("parent_id", Text),
    _time("date_done"),
    Column("task", Text),
    Column("worker", Text),
    Column("queue", Text),
    Column("retries", Integer),
    Column("request", LargeBinary),
    _time("expires_at"),
)

result_groups = Table(
    "result_groups",
    metadata,
    Column("group_id", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    Column("content_type", Text, nullable=False),
    Column("content_encoding", Text, nullable=False),
    _time("expires_at"),
)

chords = Table(
    "chords",
    metadata,
    Column("group_id", Text, primary_key=True),
    Column("size", Integer),
    Column("added", Integer, nullable=False, server_default=text("0")),
    Column("done", Integer, nullable=False, server_default=text("0")),
    Column("ended", Boolean, nullable=False, server_default=text("false")),
    _time("expires_at"),
)

chord_parts = Table(
    "chord_parts",
    metadata,
    Column("group_id", Text, primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("task_id", Text, primary_key=True),
    Column("status", Text, nullable=False),
    Column("body", LargeBinary),
    Column("content_type", Text, nullable=False),
    Column("content_encoding", Text, nullable=False),
)

chord_bodies = Table(
    "chord_bodies",
    metadata,
    Column("group_id", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    Column("content_type", Text, nullable=False),
    Column("content_encoding", Text, nullable=False),
)

result_waits = Table(
    "result_waits",
    metadata,
    Column("task_id", Text, primary_key=True),
    Column("waiter", Text, primary_key=True),
    _time("at", now=True),
    prefixes=["UNLOGGED"],
)

#: The periods of histories in partitions; NULL where it has no end.
partitions = Table(
    "partitions",
    metadata,
    Column("history", Text, nullable=False),
    Column("name", Text, primary_key=True),
    _time("starts_at"),
    _time("ends_at"),
    Column("is_kept", Boolean, nullable=False, server_default=text("false")),
)
