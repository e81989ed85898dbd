-- name: members
SELECT {columns} FROM pgbeat.jobs j WHERE group_id = :group_id
 ORDER BY group_position, attempt, created_at, id LIMIT :limit

-- name: write_as_owner
SELECT {columns} FROM pgbeat.write_group_as_owner(CAST(:fields AS json))
