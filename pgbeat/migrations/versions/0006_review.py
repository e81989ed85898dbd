"""The oldest programs that a schema admits, and what else running beside each other needs."""

from alembic import op

revision = "0006"
down_revision = "0005"

# A program of an older version may use the schema if its own newest migration is `minimum` or a
# later one. A migration that only adds leaves it as it is; one that takes away or changes the
# meaning of what the version before uses raises it: `UPDATE pgbeat.migrations SET minimum = …`.
# Programs up to 0005 accept their own version only, so the rule starts here.
MINIMUM = """
ALTER TABLE pgbeat.migrations ADD COLUMN minimum text;
UPDATE pgbeat.migrations SET minimum = '0006';
"""

# That a job must be approved stays with it and with its retries.
APPROVAL = """
ALTER TABLE pgbeat.jobs ADD COLUMN requires_approval boolean NOT NULL DEFAULT false;
UPDATE pgbeat.jobs SET requires_approval = true WHERE awaits_approval;
ALTER TABLE pgbeat.jobs ADD CONSTRAINT jobs_approved CHECK (
    NOT requires_approval OR approved_by IS NOT NULL
    OR state NOT IN ('pending', 'scheduled', 'running', 'completed'));
"""

# What became of the messages that started jobs. Only ever inserted into, so nothing that is locked
# elsewhere delays an acknowledgement.
MESSAGE_ENDS = """
CREATE TABLE pgbeat.message_ends (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id      uuid NOT NULL,
    how         text NOT NULL,
    queue       text,                             -- of one that no worker accepted
    consumer_id integer,                          -- of one that was accepted …
    worker_id   integer,                          -- … NULL: by a worker that records nothing
    ended_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT message_ends_how CHECK (how IN ('accepted', 'purged', 'deleted', 'expired'))
);
CREATE INDEX message_ends_of_job ON pgbeat.message_ends (job_id, id);
CREATE INDEX message_ends_unaccepted ON pgbeat.message_ends (id) WHERE how <> 'accepted';
"""

# Why a running job is to be cancelled, until it has ended.
CANCEL_REASON = """
ALTER TABLE pgbeat.jobs ADD COLUMN cancel_reason text;
"""

# What a task can ask about the due time that it is for.
DUE_TIMES = """
ALTER TABLE pgbeat.jobs ADD COLUMN trigger text, ADD COLUMN interval_start timestamptz;
"""

# Which app's code made a row. NULL: not known, so no beat removes it.
SCHEDULE_APPS = """
ALTER TABLE pgbeat.schedules ADD COLUMN app text;
"""


def upgrade() -> None:
    for script in (
        MINIMUM,
        APPROVAL,
        MESSAGE_ENDS,
        CANCEL_REASON,
        DUE_TIMES,
        SCHEDULE_APPS,
    ):
        op.execute(script.strip())
