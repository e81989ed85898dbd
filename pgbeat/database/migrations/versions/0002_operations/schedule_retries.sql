-- What a decision that failed leaves to be retried. This comes after check_schedule and check_next_run,
-- which forget `due_at` wherever somebody else than beat moves `next_run`.

-- What is computed afresh, or begins anew after a pause, is no retry. One that is only moved stays
-- one, of the same due time.
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
