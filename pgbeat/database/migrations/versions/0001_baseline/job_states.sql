-- What becomes of a job when an attempt at it ends. Every statement that ends jobs calls these, so
-- that each rule stands here alone. The planner inlines them: none may be STRICT, or less volatile
-- than what it calls.

-- The state of a job that `target` is recorded for: a pending cancel request turns failed, scheduled
-- or pending into cancelled.
CREATE FUNCTION pgbeat.next_state(cancel_requested_at timestamptz, target text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN cancel_requested_at IS NOT NULL
                     AND target IN ('failed', 'scheduled', 'pending') THEN 'cancelled'
                ELSE target END
$$;

-- The error of a job or an execution that took `state`: if it was cancelled on request, the reason
-- of the request, and in brackets the error that it ended with.
CREATE FUNCTION pgbeat.end_error(state text, cancel_reason text, error text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN state = 'cancelled' AND cancel_reason IS NOT NULL
                THEN cancel_reason || coalesce(' (' || error || ')', '')
                ELSE error END
$$;
