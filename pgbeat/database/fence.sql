-- The server that answers, by what it shares with its replicas, and by which of them it is: each
-- promotion, and each restore to a point in time, begins a timeline.
-- name: server
SELECT current_setting('transaction_read_only') = 'on' AS is_read_only,
       (SELECT system_identifier FROM pg_control_system()) AS system_identifier,
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer
       END AS timeline

-- Of the servers on which the database has lived, whether there are any, and whether one has the
-- system identifier.
-- name: known
SELECT count(*) > 0 AS is_noted, coalesce(bool_or(system_identifier = :system), false) AS is_known
  FROM pgbeat.servers

-- Notes the server; returns the latest timeline before, if the timeline is new to the database.
-- name: note
WITH noted AS (
    INSERT INTO pgbeat.servers (system_identifier, timeline) VALUES (:system, :timeline)
    ON CONFLICT DO NOTHING RETURNING timeline)
SELECT (SELECT max(s.timeline) FROM pgbeat.servers s WHERE s.system_identifier = :system)
  FROM noted
