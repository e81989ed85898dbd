-- name: find
SELECT {columns} FROM pgbeat.jobs j WHERE j.id = ANY (CAST(:ids AS uuid[]))
-- name: find_as_owner
SELECT {columns} FROM pgbeat.find_jobs_as_owner(CAST(:ids AS uuid[])) j
