-- name: find
SELECT {columns} FROM pgbeat.jobs j WHERE j.id = ANY (CAST(:ids AS uuid[]))
