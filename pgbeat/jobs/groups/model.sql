-- name: members
SELECT {columns} FROM pgbeat.jobs j WHERE group_id = :group_id
 ORDER BY group_position, attempt, created_at, id LIMIT :limit
