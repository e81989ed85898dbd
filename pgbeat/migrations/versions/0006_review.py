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


def upgrade() -> None:
    for script in (MINIMUM, APPROVAL):
        op.execute(script.strip())
