"""The statements of the result backend, prepared by name in each session.

Their parameters are text. A `commit` parameter is `off` where the commit need not wait for the
disk, and NULL for the server's own setting.
"""

from pgbeat.database.channels import RESULTS
from pgbeat.database.prepared import Statement

_VALUES = """
    task_id, status, body, content_type, content_encoding, traceback, children, group_id,
    parent_id, date_done, task, worker, queue, retries, request, expires_at"""

# Invariant: a stored success stays, no revocation replaces an end, and no retry a revocation: the
# task was cancelled as it asked for one. Whoever waits is notified in the same transaction.
_STORE = """
WITH %(first)s
     stored AS (
     INSERT INTO pgbeat.results AS r (%(columns)s)
     SELECT $1, $2, $3::bytea, $4, $5, $6, $7::jsonb, $8, $9,
            CASE WHEN %(is_ready)s THEN clock_timestamp() END,
            $10, $11, $12, $13::integer, $14::bytea,
            clock_timestamp() + make_interval(secs => $15::double precision)
      WHERE ($16::text IS NULL OR set_config('synchronous_commit', $16, true) IS NOT NULL)
        AND %(only_if)s
     ON CONFLICT (task_id) DO UPDATE SET (%(columns)s) = ROW (excluded.*)
      WHERE r.status <> 'SUCCESS'
        AND NOT (excluded.status = 'REVOKED' AND r.status IN ('FAILURE', 'REVOKED'))
        AND NOT (excluded.status = 'RETRY' AND r.status = 'REVOKED')),
     waiting AS (%(waiting)s)
%(then)s
"""
_NOTIFY = f"pg_notify('{RESULTS}' || waiter, left($1, 7000))"
_READY = {
    "columns": _VALUES,
    "is_ready": "true",
    "first": "",
    "only_if": "true",
    "waiting": "DELETE FROM pgbeat.result_waits WHERE task_id = $1 RETURNING waiter",
    "then": f"SELECT {_NOTIFY} FROM waiting",  # noqa: S608
}

#: Stores a final state: task, status, body, content type and encoding, traceback, children, group,
#: parent, task name, worker, queue, retries, request, seconds until it expires, commit.
STORE = Statement("store_result", _STORE % _READY)
#: Stores a state that others will follow, likewise.
STORE_STATE = Statement(
    "store_state",
    _STORE
    % {
        **_READY,
        "is_ready": "false",
        "waiting": "SELECT waiter FROM pgbeat.result_waits WHERE task_id = $1",
    },
)
#: Stores the same for several tasks that have no final state: a JSON array of tasks, status, body,
#: content type and encoding, seconds until it expires.
STORE_SAME = Statement(
    "store_same_result",
    f"""
    WITH stored AS (
         INSERT INTO pgbeat.results AS r
                (task_id, status, body, content_type, content_encoding, date_done, expires_at)
         SELECT id, $2, $3::bytea, $4, $5, clock_timestamp(),
                clock_timestamp() + make_interval(secs => $6::double precision)
           FROM json_array_elements_text($1::json) AS id ORDER BY id
         ON CONFLICT (task_id) DO UPDATE
            SET (status, body, content_type, content_encoding, date_done, expires_at) = ROW (
                    excluded.status, excluded.body, excluded.content_type,
                    excluded.content_encoding, excluded.date_done, excluded.expires_at)
          WHERE r.status NOT IN ('SUCCESS', 'FAILURE', 'REVOKED')),
         waiting AS (
         DELETE FROM pgbeat.result_waits
          WHERE task_id IN (SELECT json_array_elements_text($1::json)) RETURNING task_id, waiter)
    SELECT pg_notify('{RESULTS}' || waiter, left(task_id, 7000)) FROM waiting
    """,  # noqa: S608
)


#: `STORE` with the acknowledgement of the task's message: its id, its consumer.
#:
#: Yields whether the consumer still had the message; if not, nothing is stored.
STORE_AND_ACKNOWLEDGE = Statement(
    "store_and_acknowledge",
    _STORE
    % {
        **_READY,
        "first": "gone AS (DELETE FROM kombu_message WHERE id = $17::bigint"
        " AND claimed_by = $18::integer RETURNING 1),",
        "only_if": "EXISTS (SELECT FROM gone)",
        "waiting": "DELETE FROM pgbeat.result_waits"
        " WHERE task_id = $1 AND EXISTS (SELECT FROM gone) RETURNING waiter",
        "then": f"SELECT EXISTS (SELECT FROM gone), (SELECT count({_NOTIFY}) FROM waiting)",  # noqa: S608
    },
)

_READ = """
SELECT task_id, status, body, content_type, content_encoding, traceback, children, group_id,
       parent_id, to_char(date_done AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
       task, worker, queue, retries, request
  FROM pgbeat.results
 WHERE %s AND (expires_at IS NULL OR expires_at > now())
"""
#: Reads one result: task.
READ = Statement("read_result", _READ % "task_id = $1")
_AMONG = "task_id IN (SELECT json_array_elements_text($1::json))"
#: Reads several: a JSON array of tasks.
READ_MANY = Statement("read_results", _READ % _AMONG)
#: Reads those of several that have a final state: the tasks, the final states.
READ_READY = Statement(
    "read_ready_results",
    _READ % f"{_AMONG} AND status IN (SELECT json_array_elements_text($2::json))",
)
FORGET = Statement("forget_result", "DELETE FROM pgbeat.results WHERE task_id = $1")

#: Notes who waits: a JSON array of tasks, the waiter.
WAIT = Statement(
    "wait_for_results",
    """
    INSERT INTO pgbeat.result_waits (task_id, waiter)
    SELECT id, $2 FROM json_array_elements_text($1::json) AS id ORDER BY id
    ON CONFLICT DO NOTHING
    """,
)

#: Saves a group: group, body, content type and encoding, seconds until it expires.
SAVE_GROUP = Statement(
    "save_result_group",
    """
    INSERT INTO pgbeat.result_groups (group_id, body, content_type, content_encoding, expires_at)
    VALUES ($1, $2::bytea, $3, $4,
            clock_timestamp() + make_interval(secs => $5::double precision))
    ON CONFLICT (group_id) DO UPDATE SET body = excluded.body,
           content_type = excluded.content_type, content_encoding = excluded.content_encoding,
           expires_at = excluded.expires_at
    """,
)
#: Reads a group, which lives at least as long as the chord whose header it is.
RESTORE_GROUP = Statement(
    "restore_result_group",
    """
    SELECT body, content_type, content_encoding FROM pgbeat.result_groups
     WHERE group_id = $1
       AND (expires_at IS NULL OR expires_at > now()
            OR EXISTS (SELECT FROM pgbeat.chords WHERE group_id = $1))
    """,
)
DELETE_GROUP = Statement(
    "delete_result_group", "DELETE FROM pgbeat.result_groups WHERE group_id = $1"
)

# Invariant: a part counts once, however often its task runs. The row of the chord stays locked
# until the transaction ends, so one part is the last. Each part renews the chord, which expires
# once no part has returned for so long.
#: Returns a part: group, position, task, status, body, content type and encoding, seconds until
#: the chord expires, commit. Yields how many there are, and of how many (NULL: not known yet);
#: nothing if the part was there, or the chord has ended.
RETURN_PART = Statement(
    "return_chord_part",
    """
    WITH part AS (
         INSERT INTO pgbeat.chord_parts
                (group_id, position, task_id, status, body, content_type, content_encoding)
         SELECT $1, $2::integer, $3, $4, $5::bytea, $6, $7
          WHERE NOT EXISTS (SELECT FROM pgbeat.chords WHERE group_id = $1 AND ended)
            AND ($9::text IS NULL OR set_config('synchronous_commit', $9, true) IS NOT NULL)
         ON CONFLICT DO NOTHING
         RETURNING 1)
    INSERT INTO pgbeat.chords AS c (group_id, done, expires_at)
    SELECT $1, 1, clock_timestamp() + make_interval(secs => $8::double precision) FROM part
    ON CONFLICT (group_id) DO UPDATE SET done = c.done + 1, expires_at = excluded.expires_at
     WHERE NOT c.ended
    RETURNING done, size + added
    """,
)
#: Keeps a chord's body for `SET_CHORD_SIZE`: group, body, content type and encoding.
KEEP_BODY = Statement(
    "keep_chord_body",
    """
    INSERT INTO pgbeat.chord_bodies (group_id, body, content_type, content_encoding)
    VALUES ($1, $2::bytea, $3, $4)
    ON CONFLICT DO NOTHING
    """,
)
#: Reads the body that was kept: group.
KEPT_BODY = Statement(
    "read_chord_body",
    "SELECT body, content_type, content_encoding FROM pgbeat.chord_bodies WHERE group_id = $1",
)
#: Begins a chord (group) that has ended once more: the same frozen one was applied again.
RESTART_CHORD = Statement(
    "restart_chord",
    """
    WITH chord AS (
         UPDATE pgbeat.chords SET ended = false, size = NULL, added = 0, done = 0
          WHERE group_id = $1 AND ended
         RETURNING group_id)
    DELETE FROM pgbeat.chord_parts USING chord WHERE chord_parts.group_id = chord.group_id
    """,
)
#: Says how many parts a chord has: group, size, seconds until it expires. Yields how many have
#: returned, of how many, unless the chord has ended.
SET_CHORD_SIZE = Statement(
    "set_chord_size",
    """
    INSERT INTO pgbeat.chords AS c (group_id, size, expires_at)
    VALUES ($1, $2::integer, clock_timestamp() + make_interval(secs => $3::double precision))
    ON CONFLICT (group_id) DO UPDATE SET size = excluded.size, expires_at = excluded.expires_at
     WHERE NOT c.ended
    RETURNING done, size + added
    """,
)
#: Adds a part to a chord: group, seconds until it expires.
ADD_TO_CHORD = Statement(
    "add_to_chord",
    """
    INSERT INTO pgbeat.chords AS c (group_id, added, expires_at)
    VALUES ($1, 1, clock_timestamp() + make_interval(secs => $2::double precision))
    ON CONFLICT (group_id) DO UPDATE SET added = c.added + 1, expires_at = excluded.expires_at
    """,
)
#: Ends a chord (group), durably; yields its parts in the header's order.
END_CHORD = Statement(
    "end_chord",
    """
    WITH chord AS (UPDATE pgbeat.chords SET ended = true WHERE group_id = $1),
         body AS (DELETE FROM pgbeat.chord_bodies WHERE group_id = $1),
         parts AS (DELETE FROM pgbeat.chord_parts WHERE group_id = $1 RETURNING *)
    SELECT task_id, status, body, content_type, content_encoding FROM parts
     ORDER BY position < 0, position, task_id
    """,
)
DURABLY = "SET LOCAL synchronous_commit TO DEFAULT"
