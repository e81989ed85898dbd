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

# Schedules that were made in the console, as the audit calls it.
SOURCES = """
ALTER TABLE pgbeat.schedules
    DROP CONSTRAINT schedules_source,
    ADD CONSTRAINT schedules_source CHECK (
        source IN ('sql', 'cli', 'api', 'page', 'file', 'code', 'import'));
"""

# What webhooks are told has the names that the API has for the same.
PAYLOADS = """
CREATE OR REPLACE FUNCTION pgbeat.tell_execution() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pgbeat.webhooks WHERE enabled) THEN
        PERFORM pgbeat.tell(j.namespace, 'job.run.' || NEW.state, jsonb_build_object(
            'id', NEW.id, 'job_id', NEW.job_id, 'execution_number', NEW.number,
            'status', NEW.state, 'lost', NEW.lost, 'started_at', NEW.started_at,
            'completed_at', NEW.finished_at, 'duration_ms', round(NEW.duration_ms::numeric),
            'cpu_time_ms', round(NEW.cpu_time_ms::numeric), 'memory_peak_mb', NEW.memory_peak_mb,
            'retry_attempt', NEW.retry_attempt, 'worker', NEW.worker, 'result', NEW.result,
            'error_message', NEW.error, 'metadata', NEW.metadata, 'job', pgbeat.job_facts(j)))
           FROM pgbeat.jobs j WHERE j.id = NEW.job_id AND j.task <> 'pgbeat.deliver';
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION pgbeat.job_facts(j pgbeat.jobs) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'id', j.id, 'task', j.task, 'schedule', j.schedule, 'due_at', j.due_at,
        'template', j.template, 'queue', j.queue, 'lane', j.lane, 'priority', j.priority,
        'tags', to_jsonb(j.tags), 'group_id', j.group_id, 'unique_key', j.unique_key,
        'attempt', j.attempt, 'max_attempts', j.max_attempts, 'retry_of', j.retry_of,
        'job_source', j.job_source, 'created_by', j.created_by,
        'is_system_job', j.is_system_job, 'created_at', j.created_at)
$$;

CREATE OR REPLACE FUNCTION pgbeat.tell_job() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.tell(NEW.namespace, 'job.failed',
        pgbeat.job_facts(NEW) || jsonb_build_object(
            'status', NEW.state, 'started_at', NEW.started_at, 'completed_at', NEW.finished_at,
            'worker', NEW.worker, 'error', NEW.error));
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION pgbeat.tell_schedule() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.tell(NEW.namespace, 'schedule.disabled', jsonb_build_object(
        'id', NEW.id, 'name', NEW.name, 'task', NEW.task, 'owner', NEW.owner,
        'disabled_reason', NEW.disabled_reason, 'retry_count', NEW.retry_count,
        'last_failure', NEW.last_failure, 'last_error', NEW.last_error));
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION pgbeat.tell_tick() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.tell(s.namespace, 'tick.failed', jsonb_build_object(
        'schedule_name', NEW.schedule, 'task', s.task, 'run_time', NEW.due_at,
        'decided_at', NEW.decided_at, 'outcome', NEW.outcome, 'trigger', NEW.trigger,
        'error', NEW.error))
       FROM pgbeat.schedules s WHERE s.id = NEW.schedule_id;
    RETURN NULL;
END
$$;
"""

# Each condition is undone once it has answered: what it sets is not there for the next.
CONDITIONS = """
CREATE OR REPLACE FUNCTION pgbeat.ask(conditions text[])
RETURNS TABLE (first_row text, code text, problem text)
LANGUAGE plpgsql AS $$
DECLARE
    condition   text;
    asked       refcursor;
    answer      record;
    has_answered boolean;
BEGIN
    FOREACH condition IN ARRAY conditions LOOP
        first_row := NULL;
        code := NULL;
        problem := NULL;
        has_answered := false;
        BEGIN
            asked := NULL;
            OPEN asked NO SCROLL FOR EXECUTE condition;
            FETCH asked INTO answer;
            IF FOUND THEN
                first_row := row_to_json(answer)::text;
            END IF;
            CLOSE asked;
            has_answered := true;
            RAISE EXCEPTION USING ERRCODE = 'PB001';
        EXCEPTION
            WHEN query_canceled THEN
                code := '57014';
                problem := SQLERRM;
                RETURN NEXT;
                RETURN;
            WHEN OTHERS THEN
                IF NOT has_answered OR SQLSTATE <> 'PB001' THEN
                    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, problem = MESSAGE_TEXT;
                END IF;
        END;
        RETURN NEXT;
    END LOOP;
END
$$;
"""


def upgrade() -> None:
    for script in (
        MINIMUM,
        APPROVAL,
        MESSAGE_ENDS,
        CANCEL_REASON,
        DUE_TIMES,
        SCHEDULE_APPS,
        SOURCES,
        PAYLOADS,
        CONDITIONS,
    ):
        op.execute(script.strip())
