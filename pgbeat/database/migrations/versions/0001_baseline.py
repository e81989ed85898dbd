"""The whole schema, as the first release has it.

Each `.sql` file says what its part must keep.

It is explicit and never follows `pgbeat/tables.py`: a migration must not change with the code.
"""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None

# The oldest program that may use the schema: one whose own newest migration is this or a later one.
# A migration that only adds leaves it alone; one that takes away or changes the meaning of what the
# version before uses raises it: `UPDATE pgbeat.migrations SET oldest_program = …`.
OLDEST_PROGRAM = """
ALTER TABLE pgbeat.migrations ADD COLUMN oldest_program text NOT NULL DEFAULT '0001';
"""

PARTS = (
    "schedules",
    "timetable_problems",
    "ticks",
    "jobs",
    "job_states",
    "retries",
    "dependencies",
    "executions",
    "lanes",
    "fair_lanes",
    "schedule_checks",
    "submit",
    "job_ends",
    "webhooks",
    "check_ins",
    "events",
    "deadlines",
    "access",
    "metrics",
    "rollups",
    "consumers",
    "results",
    "partitions",
    "adopt_broker",
)

# Tables of the stock transport may be there.
ADOPT = """
DO $$
BEGIN
    IF to_regclass('kombu_message') IS NOT NULL AND to_regclass('kombu_queue') IS NOT NULL THEN
        PERFORM pgbeat.adopt_broker();
    END IF;
END
$$;
"""


def upgrade() -> None:
    """Creates the schema, and adopts the stock transport's tables if they exist."""
    folder = Path(__file__).with_suffix("")
    parts = [(folder / f"{part}.sql").read_text(encoding="utf-8") for part in PARTS]
    for script in (OLDEST_PROGRAM, *parts, ADOPT):
        op.execute(script.strip())
