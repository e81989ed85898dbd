-- name: write_as_owner
SELECT {columns} FROM pgbeat.write_group_as_owner(CAST(:fields AS json))
