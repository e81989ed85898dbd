-- Where a primary stands: what it has written, its clock, and which server it is.
-- name: position
SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn()::text END AS position,
       clock_timestamp() AS now, pg_postmaster_start_time() AS began

-- How many seconds a server is behind that, at most: since what it replayed last was committed. A
-- server that replays nothing is another primary, unless it is the same.
-- name: lag
SELECT CASE WHEN NOT pg_is_in_recovery()
            THEN CASE WHEN pg_postmaster_start_time() = CAST(:began AS timestamptz) THEN 0 END
            WHEN pg_last_wal_replay_lsn() >= CAST(:position AS pg_lsn) THEN 0
            ELSE greatest(0, extract(epoch FROM CAST(:now AS timestamptz)
                                                - pg_last_xact_replay_timestamp()))
       END
