"""What operating pgbeat needs of the schema. Programs of 0001 may use it.

It adds, and replaces functions by others that do the same for roles that could call them.
"""

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"

#: Tables that were there before and that it locks, with the mode. A test compares it.
LOCKS: dict[str, str] = {
    "kombu_message": "ACCESS EXCLUSIVE",
    "pgbeat.calendars": "ACCESS EXCLUSIVE",
    "pgbeat.deliveries": "ACCESS EXCLUSIVE",
    "pgbeat.lanes": "ACCESS EXCLUSIVE",
    "pgbeat.schedules": "ACCESS EXCLUSIVE",
    "pgbeat.templates": "ACCESS EXCLUSIVE",
    "pgbeat.unfinished_jobs": "SHARE ROW EXCLUSIVE",
    "pgbeat.webhooks": "ACCESS EXCLUSIVE",
}

PARTS = (
    "queue_load",
    "fence",
    "roles",
    "results",
    "freshness",
    "upstreams",
    "templates",
    "schedule_retries",
    "executions",
    "job_ends",
    "cron_lines",
    "webhook_formats",
    "incidents",
    "stacks",
    "batches",
    "steps",
    "set_up",
    "claim_plans",
    "announcements",
    "times",
    "statistics",
)


def upgrade() -> None:
    """Adds each part."""
    folder = Path(__file__).with_suffix("")
    for part in PARTS:
        op.execute((folder / f"{part}.sql").read_text(encoding="utf-8").strip())
