-- name: held
r.id IN ({alive})
-- name: delete_dead
DELETE FROM pgbeat.reservations r
 WHERE r.namespace = :namespace AND r.lane = :lane AND NOT {held}
-- name: live
SELECT {fields} FROM pgbeat.reservations r
 WHERE r.namespace = :namespace AND r.lane = :lane AND {held} ORDER BY r.id
