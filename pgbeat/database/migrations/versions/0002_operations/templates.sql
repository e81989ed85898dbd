-- A template that an open transaction names stays: whoever removes it, or gives it another task, waits.
-- Before check_job_policy, which takes the task of it.
CREATE FUNCTION pgbeat.await_template() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM pgbeat.templates t
      WHERE t.namespace = NEW.namespace AND t.name = NEW.job_policy ->> 'template' FOR KEY SHARE;
    RETURN NEW;
END
$$;

CREATE TRIGGER await_template
    BEFORE INSERT OR UPDATE OF job_policy, namespace ON pgbeat.schedules FOR EACH ROW
    WHEN (NEW.job_policy ? 'template') EXECUTE FUNCTION pgbeat.await_template();
