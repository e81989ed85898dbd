"""The tables of the schema `pgbeat`, as the migrations leave them."""

from collections.abc import Iterator

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, REGCLASS, UUID

SCHEMA = "pgbeat"
metadata = MetaData(schema=SCHEMA)


def _time(name: str, *, now: bool = False) -> Column[object]:
    default = text("now()") if now else None
    return Column(name, DateTime(timezone=True), nullable=not now, server_default=default)


def _of_calendar(*names: str) -> str:
    """Returns a condition that times are such as Python can hold; others would fail every read."""
    lowest, highest = "'0001-01-02 00:00+00'", "'9999-12-30 00:00+00'"
    return " AND ".join(f"{name} BETWEEN {lowest} AND {highest}" for name in names)


def _namespace(*, primary_key: bool = False) -> Column[object]:
    return Column(
        "namespace", Text, primary_key=primary_key, nullable=False, server_default="default"
    )


def _json(name: str, default: str = "{}") -> Column[object]:
    return Column(name, JSONB, nullable=False, server_default=default)


def _json_checks(table: str, *, objects: str = "", arrays: str = "") -> Iterator[CheckConstraint]:
    """Yields a constraint for each of the columns that it is a JSON object, or an array."""
    for columns, kind in ((objects, "object"), (arrays, "array")):
        for name in columns.split():
            check = f"jsonb_typeof({name}) = '{kind}'"
            yield CheckConstraint(check, name=f"{table}_{name}_{kind}")


def _index(
    name: str, table: Table, columns: str, *, where: str | None = None, unique: bool = False
) -> None:
    """Adds an index of columns such as `priority DESC, position`, of rows `where` that holds."""
    parts = [each.partition(" ") for each in columns.split(", ")]
    of = [table.c[column].desc() if order else table.c[column] for column, _, order in parts]
    Index(name, *of, unique=unique, postgresql_where=None if where is None else text(where))


def _label_index(name: str, table: Table) -> None:
    Index(
        name,
        table.c.labels,
        postgresql_using="gin",
        postgresql_ops={"labels": "jsonb_path_ops"},
        postgresql_where=text("labels <> '{}'"),
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
_ENDED = "('completed', 'failed', 'cancelled', 'skipped')"
_NAMESPACE = "namespace ~ '^[A-Za-z0-9_.-]{1,63}$'"
_NAME = "name ~ '^[^[:cntrl:]/]{1,200}$' AND btrim(name) = name AND name NOT IN ('.', '..')"
_TIMETABLES = "cron, every, once_at, solar, rrule, after"

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
    Column("paused_reason", Text),
    _time("failures_from"),
    Column("description", Text),
    _json("labels"),
    _json("metadata"),
    UniqueConstraint("namespace", "name", name="schedules_name_key"),
    CheckConstraint(_NAMESPACE, name="schedules_namespace"),
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
        "AND overlap IN ('allow', 'skip', 'queue_one', 'buffer_all', 'cancel_previous')",
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
    CheckConstraint("completed_at IS NULL OR NOT enabled", name="schedules_completed"),
    CheckConstraint("args IS NOT NULL OR source = 'code'", name="schedules_args_present"),
    CheckConstraint(
        "pause_after_failures BETWEEN 1 AND 1000", name="schedules_pause_after_failures"
    ),
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
        "source IN ('sql', 'cli', 'api', 'page', 'file', 'code', 'import')", name="schedules_source"
    ),
    ForeignKeyConstraint(
        ["namespace", "calendar"],
        ["pgbeat.calendars.namespace", "pgbeat.calendars.name"],
        name="schedules_calendar",
    ),
    *_json_checks("schedules", objects="kwargs options job_policy labels metadata", arrays="args"),
)
#: What is due, and what has no next time yet: the only index that an idle tick touches.
_index("schedules_due", schedules, "namespace, next_run", where="enabled AND paused_at IS NULL")
_index(
    "schedules_probe",
    schedules,
    "namespace, probe_at",
    where="NOT enabled AND probe_at IS NOT NULL",
)
_index("schedules_disabled", schedules, "namespace, name", where="NOT enabled")
_index("schedules_paused", schedules, "namespace, name", where="enabled AND paused_at IS NOT NULL")
_index("schedules_calendar", schedules, "namespace, calendar", where="calendar IS NOT NULL")
_label_index("schedules_labels", schedules)
_index("schedules_after", schedules, "namespace, after", where="after IS NOT NULL")

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
    # One decision for a due time. This is what makes a launch happen once.
    UniqueConstraint("schedule_id", "due_at", "trigger", name="ticks_one_decision"),
    CheckConstraint("outcome IN ('launched', 'skipped', 'failed')", name="ticks_outcome"),
    CheckConstraint(
        "trigger IN ('timetable', 'retry', 'manual', 'after', 'backfill')", name="ticks_trigger"
    ),
    CheckConstraint("(outcome = 'launched') = (job_id IS NOT NULL)", name="ticks_launched_job"),
    CheckConstraint(
        "more_job_ids IS NULL "
        "OR outcome = 'launched' AND cardinality(more_job_ids) BETWEEN 1 AND 99",
        name="ticks_more_jobs",
    ),
    CheckConstraint("(outcome = 'skipped') = (reason IS NOT NULL)", name="ticks_skipped_reason"),
    CheckConstraint("(outcome = 'failed') = (error IS NOT NULL)", name="ticks_failed_error"),
)

calendars = Table(
    "calendars",
    metadata,
    _namespace(primary_key=True),
    Column("name", Text, primary_key=True),
    Column("definition", JSONB, nullable=False),
    _time("created_at", now=True),
    _time("updated_at", now=True),
    CheckConstraint(_NAMESPACE, name="calendars_namespace"),
    CheckConstraint("length(name) BETWEEN 1 AND 200", name="calendars_name_length"),
    CheckConstraint(
        "name !~ '[[:cntrl:]/]' AND btrim(name) = name AND name NOT IN ('.', '..')",
        name="calendars_name_plain",
    ),
    *_json_checks("calendars", objects="definition"),
)

namespaces = Table(
    "namespaces",
    metadata,
    Column("name", Text, primary_key=True),
    Column("timezone", Text, nullable=False),
    CheckConstraint("name ~ '^[A-Za-z0-9_.-]{1,63}$'", name="namespaces_name"),
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
    Column("position", Numeric, server_default=text("EXTRACT(epoch FROM clock_timestamp())")),
    Column("tags", ARRAY(Text), nullable=False, server_default="{}"),
    _json("resources"),
    Column("attempt", Integer, nullable=False, server_default="1"),
    Column("max_attempts", Integer, nullable=False, server_default="1"),
    Column("retry_base", Interval, nullable=False, server_default=text("'1 minute'")),
    Column("retry_cap", Interval, nullable=False, server_default=text("'1 hour'")),
    Column("retry_of", UUID),
    Column("retried_by", UUID),
    Column("group_id", UUID),
    Column("group_position", Integer),
    Column("blocked_by_group", Boolean, nullable=False, server_default=text("false")),
    Column("unique_key", Text),
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
    Column("description", Text),
    _json("labels"),
    _json("metadata"),
    Column("run_key", Text),
    _time("elsewhere_at"),
    CheckConstraint(f"state IN {JOB_STATES}", name="jobs_state"),
    CheckConstraint(f"job_source IN {JOB_SOURCES}", name="jobs_source"),
    CheckConstraint("state <> 'running' OR started_at IS NOT NULL", name="jobs_started"),
    CheckConstraint(f"state NOT IN {_ENDED} OR finished_at IS NOT NULL", name="jobs_finished"),
    CheckConstraint(
        "NOT awaits_approval OR state NOT IN ('pending', 'scheduled', 'running')",
        name="jobs_approval",
    ),
    CheckConstraint(
        "NOT requires_approval OR approved_by IS NOT NULL "
        "OR state NOT IN ('pending', 'scheduled', 'running', 'completed')",
        name="jobs_approved",
    ),
    CheckConstraint("NOT blocked_by_group OR dispatched_at IS NULL", name="jobs_blocked_by_group"),
    CheckConstraint("attempt >= 1 AND max_attempts >= 1", name="jobs_attempts"),
    CheckConstraint(
        "retry_base >= interval '0' AND retry_cap >= retry_base "
        "AND retry_cap <= interval '36500 days'",
        name="jobs_backoff",
    ),
    *_json_checks("jobs", objects="labels metadata options resources"),
)
_UNFINISHED = "state IN ('pending', 'scheduled', 'running', 'paused')"
_index("jobs_by_schedule", jobs, "schedule_id, created_at")
_index(
    "jobs_unfinished", jobs, "schedule_id", where="schedule_id IS NOT NULL AND finished_at IS NULL"
)
_index(
    "jobs_waiting",
    jobs,
    "namespace, lane, priority DESC, position, created_at",
    where="lane IS NOT NULL AND dispatched_at IS NULL AND state = 'pending' "
    "AND NOT blocked_by_group",
)
_index(
    "jobs_to_come",
    jobs,
    "namespace, run_at",
    where="dispatched_at IS NULL AND state = 'scheduled' AND NOT blocked_by_group",
)
_index(
    "jobs_in_lane",
    jobs,
    "namespace, lane",
    where="lane IS NOT NULL AND dispatched_at IS NOT NULL "
    "AND state IN ('pending', 'scheduled', 'running')",
)
_index(
    "jobs_of_lane",
    jobs,
    "namespace, lane, dispatched_at",
    where="lane IS NOT NULL AND dispatched_at IS NOT NULL",
)
_index("jobs_of_group", jobs, "group_id, state, group_position", where="group_id IS NOT NULL")
_index("jobs_by_key", jobs, "namespace, unique_key, created_at", where="unique_key IS NOT NULL")
_index(
    "jobs_one_of_key",
    jobs,
    "namespace, unique_key",
    where=f"unique_key IS NOT NULL AND {_UNFINISHED}",
    unique=True,
)
#: The jobs that were launched together.
_index("jobs_launched_together", jobs, "schedule_id, due_at, trigger", where="run_key IS NOT NULL")
_index("jobs_retries", jobs, "retry_of", where="retry_of IS NOT NULL")
#: How the jobs of a schedule came out: their last attempts.
_index(
    "jobs_outcomes",
    jobs,
    "state, schedule_id, finished_at",
    where="schedule_id IS NOT NULL AND retried_by IS NULL AND state IN ('completed', 'failed')",
)
_label_index("jobs_labels", jobs)
_index("jobs_newest", jobs, "namespace, created_at, id")
_index("jobs_by_state", jobs, "namespace, state, created_at, id")
_index("jobs_by_task", jobs, "namespace, task, created_at, id")
_index("jobs_by_lane", jobs, "namespace, lane, created_at, id", where="lane IS NOT NULL")
_index(
    "jobs_by_template", jobs, "namespace, template, created_at, id", where="template IS NOT NULL"
)
_index("jobs_by_creator", jobs, "namespace, created_by, created_at, id")

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
    _time("recorded_at"),
    UniqueConstraint("job_id", "number", name="executions_number"),
    CheckConstraint(
        "state IN ('running', 'completed', 'failed', 'cancelled', 'skipped')",
        name="executions_state",
    ),
    CheckConstraint("(state = 'running') = (finished_at IS NULL)", name="executions_finished"),
    CheckConstraint("NOT lost OR state IN ('failed', 'cancelled')", name="executions_lost"),
    *_json_checks("executions", objects="metadata"),
)
_index(
    "executions_running",
    executions,
    "worker_id",
    where="worker_id IS NOT NULL AND state = 'running'",
)
_index(
    "executions_of_schedule", executions, "schedule_id, started_at", where="schedule_id IS NOT NULL"
)
_index("executions_by_time", executions, "started_at")
_index("executions_recorded", executions, "recorded_at", where="recorded_at IS NOT NULL")

counters = Table(
    "counters",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("metric", Text, primary_key=True),
    Column("label", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("value", Double, nullable=False),
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
    Column("ended_at", DateTime(timezone=True), nullable=False,
           server_default=text("clock_timestamp()")),
    CheckConstraint(
        "how IN ('accepted', 'purged', 'deleted', 'expired')", name="message_ends_how"
    ),
)  # fmt: skip
_index("message_ends_of_job", message_ends, "job_id, id")
_index("message_ends_unaccepted", message_ends, "id", where="how <> 'accepted'")

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
    _time("paused_at"),
    _time("created_at", now=True),
    _time("updated_at", now=True),
    CheckConstraint(_NAMESPACE, name="lanes_namespace"),
    CheckConstraint(_NAME, name="lanes_name"),
    CheckConstraint("max_running >= 0", name="lanes_max_running"),
    CheckConstraint(
        "num_nonnulls(rate_limit, rate_period) IN (0, 2) AND rate_limit > 0 "
        "AND rate_period > interval '0' AND rate_period <= interval '366 days'",
        name="lanes_rate",
    ),
    *_json_checks("lanes", objects="options"),
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
_index("reservations_lane", reservations, "namespace, lane")

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
    CheckConstraint("mode IN ('parallel', 'sequential')", name="groups_mode"),
    CheckConstraint(
        "on_failure IN ('stop', 'continue', 'skip_remaining')", name="groups_on_failure"
    ),
    CheckConstraint(
        "state IN ('running', 'completed', 'failed', 'cancelled')", name="groups_state"
    ),
    CheckConstraint("(state = 'running') = (finished_at IS NULL)", name="groups_finished"),
)
_index("groups_newest", groups, "namespace, created_at, id")
_index("groups_running", groups, "namespace, created_at, id", where="finished_at IS NULL")

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
    CheckConstraint(_NAMESPACE, name="templates_namespace"),
    CheckConstraint(_NAME, name="templates_name"),
    CheckConstraint("task ~ '^[^[:cntrl:]]{1,255}$' AND btrim(task) = task", name="templates_task"),
    *_json_checks("templates", objects="kwargs options job_policy", arrays="args"),
)

EVENTS = (
    "job.run.completed",
    "job.run.failed",
    "job.run.skipped",
    "job.failed",
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
    Column("created_by", Text),
    _time("created_at", now=True),
    _time("updated_at", now=True),
    UniqueConstraint("namespace", "name", name="webhooks_name_key"),
    CheckConstraint(_NAMESPACE, name="webhooks_namespace"),
    CheckConstraint(_NAME, name="webhooks_name"),
    CheckConstraint("url ~ '^https?://[^[:space:][:cntrl:]]+$'", name="webhooks_url"),
    CheckConstraint("slots >= 1", name="webhooks_slots"),
    CheckConstraint(
        "(previous_secret IS NULL) = (previous_until IS NULL)", name="webhooks_previous"
    ),
    CheckConstraint(
        f"cardinality(events) > 0 AND events <@ ARRAY{list(EVENTS)}", name="webhooks_events"
    ),
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
    CheckConstraint("state IN ('pending', 'delivered', 'failed')", name="deliveries_state"),
    CheckConstraint(
        "(state = 'pending') = (finished_at IS NULL) "
        "AND (state = 'pending') = (next_at IS NOT NULL)",
        name="deliveries_finished",
    ),
    CheckConstraint("sent_at IS NULL OR state = 'pending'", name="deliveries_sent"),
)
_index("deliveries_pending", deliveries, "webhook_id, next_at", where="state = 'pending'")
_index("deliveries_under_way", deliveries, "webhook_id, next_at", where="sent_at IS NOT NULL")
_index("deliveries_failed", deliveries, "webhook_id, created_at", where="state = 'failed'")
_index("deliveries_of_webhook", deliveries, "webhook_id, created_at, id")
_index("deliveries_by_time", deliveries, "created_at")

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
    CheckConstraint(_NAMESPACE, name="tokens_namespace"),
    CheckConstraint("scope IN ('user', 'admin')", name="tokens_scope"),
    CheckConstraint("actor ~ '^[^[:cntrl:]]{1,200}$'", name="tokens_actor"),
)
_index("tokens_by_time", tokens, "namespace, created_at")

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
    CheckConstraint(_NAMESPACE, name="audit_namespace"),
    CheckConstraint("origin IN ('cli', 'api', 'page')", name="audit_origin"),
)
_index("audit_newest", audit, "namespace, id")
_index("audit_of_subject", audit, "namespace, kind, subject, id")
_index("audit_of_actor", audit, "namespace, actor, id")

consumers = Table(
    "consumers",
    metadata,
    Column("id", Integer, Identity(cycle=True), primary_key=True),
    Column("tables", REGCLASS, nullable=False),
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
Index("results_expired", results.c.expires_at)

result_groups = Table(
    "result_groups",
    metadata,
    Column("group_id", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    Column("content_type", Text, nullable=False),
    Column("content_encoding", Text, nullable=False),
    _time("expires_at"),
)
Index("result_groups_expired", result_groups.c.expires_at)

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
