"""The columns of the tables in the schema `pgbeat`, for queries.

The migrations have the constraints, indexes, partitions and triggers.
"""

from typing import Any

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


def _columns(kind: Any, *names: str, **options: Any) -> list[Column[Any]]:
    return [Column(name, kind, **options) for name in names]


def _times(*names: str, now: bool = False) -> list[Column[Any]]:
    default = text("now()") if now else None
    return _columns(DateTime(timezone=True), *names, nullable=not now, server_default=default)


def _jsons(*names: str, default: str = "{}") -> list[Column[Any]]:
    return _columns(JSONB, *names, nullable=False, server_default=default)


def _namespace(*, primary_key: bool = False) -> Column[Any]:
    return Column(
        "namespace", Text, primary_key=primary_key, nullable=False, server_default="default"
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
    *_columns(JSONB(none_as_null=True), "kwargs", "options", nullable=False, server_default="{}"),
    *_columns(Text, "queue", "condition_sql", "cron"),
    Column("every", Interval),
    *_times("once_at"),
    *_columns(Text, "solar", "rrule", "after"),
    Column("after_outcome", Text, nullable=False, server_default="completed"),
    Column("timezone", Text),
    *_times("starts_at", "ends_at"),
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
    *_times("completed_at", "paused_at"),
    Column("max_retries", Integer, nullable=False, server_default="5"),
    Column("retry_base", Interval, nullable=False, server_default=text("'1 minute'")),
    Column("retry_factor", Double, nullable=False, server_default=text("2")),
    Column("retry_cap", Interval, nullable=False, server_default=text("'1 hour'")),
    Column("retry_count", Integer, nullable=False, server_default="0"),
    Column("probe_after", Interval),
    *_times("probe_at", "next_run", "due_at"),
    Column("waiting_for", UUID),
    Column("upstream_ended", Integer, nullable=False, server_default="0"),
    Column("out_of_turn", Boolean, nullable=False, server_default=text("false")),
    *_times("last_run", "last_success", "last_failure"),
    Column("last_error", Text),
    Column("cursor", JSONB(none_as_null=True)),
    Column("owner", Text),
    Column("source", Text, nullable=False, server_default="sql"),
    Column("app", Text),
    Column("file_definition", JSONB(none_as_null=True)),
    *_jsons("job_policy"),
    *_times("created_at", "updated_at", now=True),
    Column("pause_after_failures", Integer),
    *_columns(Text, "check_in_url", "paused_reason"),
    *_times("failures_from"),
    Column("description", Text),
    *_jsons("labels", "metadata"),
    Column("fresh_within", Interval),
    *_times("stale_at", "stale_since"),
    Column("after_match", Text, nullable=False, server_default="all"),
    Column("after_done", ARRAY(Text), nullable=False, server_default=text("'{}'")),
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
    *_times("decided_at", now=True),
    Column("outcome", Text, nullable=False),
    *_columns(Text, "reason", "error"),
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
    *_times("created_at", "updated_at", now=True),
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
    *_times("due_at"),
    Column("task", Text, nullable=False),
    *_columns(JSONB(none_as_null=True), "args", "kwargs"),
    Column("queue", Text),
    Column("state", Text, nullable=False, server_default="pending"),
    *_columns(Text, "job_source", "created_by", nullable=False),
    Column("is_system_job", Boolean, nullable=False),
    *_times("created_at", now=True),
    *_times("started_at", "finished_at"),
    *_columns(Text, "worker", "error"),
    _namespace(),
    *_jsons("options"),
    Column("template", Text),
    *_times("run_at", "dispatched_at"),
    Column("lane", Text),
    Column("priority", SmallInteger, nullable=False, server_default=text("0")),
    Column("position", Numeric),
    Column("tags", ARRAY(Text), nullable=False, server_default="{}"),
    *_jsons("resources"),
    *_columns(Integer, "attempt", "max_attempts", nullable=False, server_default="1"),
    Column("retry_base", Interval, nullable=False, server_default=text("'1 minute'")),
    Column("retry_cap", Interval, nullable=False, server_default=text("'1 hour'")),
    Column("keeps_id", Boolean, nullable=False, server_default=text("false")),
    *_columns(UUID, "retry_of", "retried_by", "group_id"),
    Column("group_position", Integer),
    Column("is_blocked", Boolean, nullable=False, server_default=text("false")),
    Column("unfinished_parents", Integer, nullable=False, server_default=text("0")),
    Column("unique_key", Text),
    *_times("paused_at"),
    Column("awaits_approval", Boolean, nullable=False, server_default=text("false")),
    Column("approved_by", Text),
    *_times("approved_at"),
    Column("cancel_requested_by", Text),
    *_times("cancel_requested_at"),
    Column("cancel_reason", Text),
    Column("checkpoint", JSONB(none_as_null=True)),
    Column("requires_approval", Boolean, nullable=False, server_default=text("false")),
    Column("trigger", Text),
    *_times("interval_start", "interval_end"),
    Column("description", Text),
    *_jsons("labels", "metadata"),
    Column("run_key", Text),
    *_times("elsewhere_at", "must_start_by", "must_end_by", "next_deadline", "late_at"),
    Column("missed_deadlines", ARRAY(Text), nullable=False, server_default="{}"),
    Column("executions", Integer, nullable=False, server_default="0"),
    Column("message", JSONB(none_as_null=True)),
    Column("fair_key", Text, nullable=False, server_default=""),
    *_columns(UUID, "root_id", "parent_id"),
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
    *_columns(Integer, "worker_id", "pid"),
    Column("acks_late", Boolean, nullable=False, server_default=text("false")),
    *_times("started_at", now=True),
    *_times("finished_at"),
    *_columns(
        Double, "duration_ms", "cpu_time_ms", "memory_peak_mb", "progress_done", "progress_total"
    ),
    *_columns(Text, "progress_message", "result", "error", "traceback"),
    *_jsons("metadata"),
    Column("log", JSON(none_as_null=True)),
    *_times("recorded_at"),
)

counters = Table(
    "counters",
    metadata,
    *_columns(Text, "namespace", "metric", "label", "kind", primary_key=True),
    Column("value", Double, nullable=False),
)

rollups = Table(
    "rollups",
    metadata,
    *_columns(Text, "namespace", "kind", "name", primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("at", DateTime(timezone=True), primary_key=True),
    *_columns(
        BigInteger,
        "completed",
        "failed",
        "cancelled",
        "skipped",
        nullable=False,
        server_default=text("0"),
    ),
    *_columns(ARRAY(Integer), "waiting", "running", nullable=False, server_default=text("'{}'")),
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
    *_columns(Text, "error", "task", nullable=False),
    Column("number", BigInteger, nullable=False),
    *_columns(DateTime(timezone=True), "first_at", "last_at", nullable=False),
    Column("job_id", UUID, nullable=False),
    Column("schedules", ARRAY(Text), nullable=False, server_default=text("'{}'")),
)

rollup_progress = Table(
    "rollup_progress",
    metadata,
    Column("namespace", Text, primary_key=True),
    *_columns(DateTime(timezone=True), "counted_until", "settled_until", nullable=False),
)

workers = Table(
    "workers",
    metadata,
    Column("id", Integer, Identity(cycle=True), primary_key=True),
    Column("name", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("pool", Text),
    Column("concurrency", Integer),
    *_times("started_at", now=True),
    *_times("missing_since"),
    Column("namespace", Text),
    Column("tasks", ARRAY(Text)),
    Column("host", Text),
    Column("versions", JSONB),
    Column("queues", ARRAY(Text)),
    *_columns(REAL, "memory_mb", "cpu"),
    *_times("reported_at", "alive_until"),
)

message_ends = Table(
    "message_ends",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("job_id", UUID, nullable=False),
    Column("how", Text, nullable=False),
    Column("queue", Text),
    *_columns(Integer, "consumer_id", "worker_id"),
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
    *_jsons("options"),
    Column("rate_limit", Integer),
    Column("rate_period", Interval),
    *_columns(Text, "rate_key", "rate_unit"),
    Column("temporary_limit", Integer),
    Column("temporary_period", Interval),
    *_times("temporary_until"),
    Column("fair_by", Text),
    Column("max_per_key", Integer),
    *_jsons("turns"),
    *_times("paused_at"),
    *_times("created_at", "updated_at", now=True),
)

reservations = Table(
    "reservations",
    metadata,
    Column("id", Integer, Identity(cycle=True), primary_key=True),
    _namespace(),
    *_columns(Text, "lane", "task", nullable=False),
    Column("tags", ARRAY(Text), nullable=False, server_default="{}"),
    *_jsons("resources"),
    Column("created_by", Text, nullable=False),
    *_times("created_at", now=True),
    *_times("started_at"),
)

dependencies = Table(
    "dependencies",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    *_columns(UUID, "job_id", "parent_id", nullable=False),
    Column("needs", Text, nullable=False, server_default="completed"),
    Column("outcome", Text),
    *_times("created_at", now=True),
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
    *_columns(Text, "job_source", "created_by", nullable=False),
    Column("is_system_job", Boolean, nullable=False, server_default=text("false")),
    *_times("created_at", now=True),
    *_times("finished_at"),
    Column("cancelled_by", Text),
    *_times("cancelled_at"),
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
    *_jsons("args", default="[]"),
    *_jsons("kwargs", "options"),
    Column("queue", Text),
    *_jsons("job_policy"),
    Column("created_by", Text),
    *_times("created_at", "updated_at", now=True),
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
    "schedule.stale",
    "schedule.recovered",
    "tick.failed",
    "tick.skipped",
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    _namespace(),
    *_columns(Text, "name", "url", "secret", nullable=False),
    Column("previous_secret", Text),
    *_times("previous_until"),
    Column("events", ARRAY(Text), nullable=False),
    Column("format", Text, nullable=False, server_default="standard"),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("disabled_reason", Text),
    Column("slots", SmallInteger, nullable=False, server_default=text("8")),
    Column("schedule_id", BigInteger),
    Column("created_by", Text),
    *_times("created_at", "updated_at", now=True),
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
    *_times("sent_at"),
    *_jsons("log", default="[]"),
    *_times("created_at", now=True),
    *_times("finished_at"),
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
    *_times("created_at", now=True),
    *_times("expires_at", "revoked_at", "last_used_at"),
    Column("is_session", Boolean, nullable=False, server_default=text("false")),
)

sign_in_links = Table(
    "sign_in_links",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    _namespace(),
    *_columns(Text, "actor", "scope", nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    _namespace(),
    Column("at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    *_columns(Text, "actor", "origin", "verb", "kind", "subject", nullable=False),
    *_columns(JSONB(none_as_null=True), "before", "after"),
)

consumers = Table(
    "consumers",
    metadata,
    Column("id", Integer, Identity(cycle=True), primary_key=True),
    Column("name", Text, nullable=False),
    *_times("started_at", now=True),
    *_times("lease_until"),
)

results = Table(
    "results",
    metadata,
    Column("task_id", Text, primary_key=True),
    Column("status", Text, nullable=False),
    Column("body", LargeBinary),
    *_columns(Text, "content_type", "content_encoding", nullable=False),
    Column("traceback", Text),
    Column("children", JSONB(none_as_null=True)),
    *_columns(Text, "group_id", "parent_id"),
    *_times("date_done"),
    *_columns(Text, "task", "worker", "queue"),
    Column("retries", Integer),
    Column("request", LargeBinary),
    *_times("expires_at"),
)

result_groups = Table(
    "result_groups",
    metadata,
    Column("group_id", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    *_columns(Text, "content_type", "content_encoding", nullable=False),
    *_times("expires_at"),
)

chords = Table(
    "chords",
    metadata,
    Column("group_id", Text, primary_key=True),
    Column("size", Integer),
    *_columns(Integer, "added", "done", nullable=False, server_default=text("0")),
    Column("ended", Boolean, nullable=False, server_default=text("false")),
    *_times("expires_at"),
)

chord_parts = Table(
    "chord_parts",
    metadata,
    Column("group_id", Text, primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("task_id", Text, primary_key=True),
    Column("status", Text, nullable=False),
    Column("body", LargeBinary),
    *_columns(Text, "content_type", "content_encoding", nullable=False),
)

chord_bodies = Table(
    "chord_bodies",
    metadata,
    Column("group_id", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    *_columns(Text, "content_type", "content_encoding", nullable=False),
)

result_waits = Table(
    "result_waits",
    metadata,
    *_columns(Text, "task_id", "waiter", primary_key=True),
    *_times("at", now=True),
    prefixes=["UNLOGGED"],
)

#: The periods of histories in partitions; NULL where it has no end.
partitions = Table(
    "partitions",
    metadata,
    Column("history", Text, nullable=False),
    Column("name", Text, primary_key=True),
    *_times("starts_at", "ends_at"),
    Column("is_kept", Boolean, nullable=False, server_default=text("false")),
)

servers = Table(
    "servers",
    metadata,
    Column("system_identifier", BigInteger, primary_key=True),
    Column("timeline", Integer, primary_key=True),
    *_times("first_seen_at", now=True),
)

fences = Table(
    "fences",
    metadata,
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    *_times("raised_at", now=True),
    Column("raised_by", Text, nullable=False),
    Column("reason", Text),
    *_times("restored_to", "released_at"),
    Column("queues", ARRAY(Text), nullable=False),
    Column("schedules", ARRAY(BigInteger), nullable=False),
)

stacks = Table(
    "stacks",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    *_columns(UUID, "job_id", "execution_id", nullable=False),
    Column("reason", Text, nullable=False),
    Column(
        "asked_at",
        DateTime(timezone=True),
        nullable=False,
        server_default=text("clock_timestamp()"),
    ),
    *_times("taken_at"),
    Column("memory_mb", REAL),
    Column("stack", Text),
)
