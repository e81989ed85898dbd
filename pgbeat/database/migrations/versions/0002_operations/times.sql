-- One row whose time Python can't hold keeps programs from reading all the others: tables that people write
-- by SQL have none, as `schedules_times_of_calendar` says of most times of schedules. What is there becomes
-- the last time, or the first, and so do the times for which jobs wait.
DO $$
DECLARE
    place    record;
    earliest CONSTANT timestamptz := '0001-01-02 00:00+00';
    latest   CONSTANT timestamptz := '9999-12-30 00:00+00';
BEGIN
    FOR place IN SELECT p.of_table, unnest(p.names) AS name FROM (VALUES
            ('unfinished_jobs', ARRAY['run_at']),
            ('schedules', ARRAY['completed_at', 'failures_from']),
            ('calendars', ARRAY['created_at', 'updated_at']),
            ('lanes', ARRAY['temporary_until', 'paused_at', 'created_at', 'updated_at']),
            ('templates', ARRAY['created_at', 'updated_at'])) AS p (of_table, names)
    LOOP
        EXECUTE format('UPDATE pgbeat.%1$I SET %2$I = greatest(least(%2$I, $2), $1)
                         WHERE NOT (%2$I BETWEEN $1 AND $2)', place.of_table, place.name)
          USING earliest, latest;
    END LOOP;
END
$$;

ALTER TABLE pgbeat.schedules ADD CONSTRAINT schedules_more_times_of_calendar CHECK (
    completed_at BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00'
    AND failures_from BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00');
ALTER TABLE pgbeat.calendars ADD CONSTRAINT calendars_times_of_calendar CHECK (
    created_at BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00'
    AND updated_at BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00');
ALTER TABLE pgbeat.lanes ADD CONSTRAINT lanes_times_of_calendar CHECK (
    temporary_until BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00'
    AND paused_at BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00'
    AND created_at BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00'
    AND updated_at BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00');
ALTER TABLE pgbeat.templates ADD CONSTRAINT templates_times_of_calendar CHECK (
    created_at BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00'
    AND updated_at BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00');
