-- name: unblock
UPDATE pgbeat.unfinished_jobs j SET {unblocked}
 WHERE id = ANY (CAST(:ids AS uuid[])) AND is_blocked AND unfinished_parents = 0
RETURNING {columns}
