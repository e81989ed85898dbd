-- Says what :words are, and no more.
SELECT '{}'::jsonb, '[0-9]{8}'
-- name: all
SELECT count(*) {those}

-- name: first
-- The oldest.
SELECT {columns} {those}
-- name: those
FROM words
  -- not of others
 WHERE {which}
