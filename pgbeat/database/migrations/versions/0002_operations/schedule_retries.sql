-- What a decision that failed leaves to be retried.

-- `due_at` moves on with each retry that fails: it says from where on due times are not accounted for.
ALTER TABLE pgbeat.schedules
    ADD COLUMN failed_due_at timestamptz,    -- that is retried; of no meaning outside of a retry
    ADD CONSTRAINT schedules_failed_due_at CHECK (
        failed_due_at BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00');

-- After check_schedule and check_next_run, which forget `due_at` wherever somebody else than beat moves
-- `next_run`: what is computed afresh, or begins anew after a pause, is no retry. One that is only
-- moved stays one, of the same due time.
CREATE FUNCTION pgbeat.keep_retry() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.next_run IS NULL OR OLD.paused_at IS NOT NULL AND NEW.paused_at IS NULL THEN
        NEW.retry_count := 0;
    ELSE
        NEW.due_at := OLD.due_at;
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER keep_retry BEFORE UPDATE ON pgbeat.schedules FOR EACH ROW
    WHEN (OLD.retry_count > 0 AND NEW.retry_count = OLD.retry_count AND NEW.enabled
        AND NEW.next_run IS DISTINCT FROM OLD.next_run AND NEW.due_at IS NULL)
    EXECUTE FUNCTION pgbeat.keep_retry();
