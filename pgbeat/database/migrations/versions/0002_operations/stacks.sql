-- Where the threads of tasks were: one stack for each execution and reason. Somebody asks for one by a
-- row that the process of the task fills in; the others are its own. There is no foreign key, as the
-- process may write one before it has recorded the execution, or after its worker has ended that.
CREATE TABLE pgbeat.stacks (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id       uuid NOT NULL,
    execution_id uuid NOT NULL,
    reason       text NOT NULL,
    asked_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    taken_at     timestamptz,
    memory_mb    real,
    stack        text,
    CONSTRAINT stacks_one UNIQUE (execution_id, reason),
    CONSTRAINT stacks_reason CHECK (
        reason IN ('asked', 'soft_time_limit', 'time_limit', 'deadline', 'cancel', 'terminated')),
    CONSTRAINT stacks_taken CHECK ((taken_at IS NULL) = (stack IS NULL))
);
CREATE INDEX stacks_of_job ON pgbeat.stacks (job_id);
CREATE INDEX stacks_asked ON pgbeat.stacks (execution_id)
    WHERE reason = 'asked' AND (taken_at IS NULL OR taken_at < asked_at);
