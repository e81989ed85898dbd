"""The statements of the result backend, prepared by name in each session.

Their parameters are text. A `commit` parameter is `off` where the commit need not wait for the
disk, and NULL for the server's own setting.
"""

from pgbeat.database import sql
from pgbeat.database.channels import RESULTS
from pgbeat.database.prepared import Statement

_SQL = "statements.sql"
_READY = {"first": "", "only_if": "true", "channel": RESULTS}
_PARTS = ("first", "only_if", "waiting", "then")

#: Stores a final state: task, status, body, content type and encoding, traceback, children, group,
#: parent, task name, worker, queue, retries, request, seconds until it expires, commit.
STORE = Statement("store_result", sql.load(_SQL, "store", is_ready="true", **_READY))
#: Stores a state that others will follow, likewise.
STORE_STATE = Statement(
    "store_state",
    sql.load(_SQL, "store", is_ready="false", waiting=sql.load(_SQL, "waiters"), **_READY),
)
#: Stores the same for several tasks that have no final state: a JSON array of tasks, status, body,
#: content type and encoding, seconds until it expires.
STORE_SAME = Statement("store_same_result", sql.load(_SQL, "store_same", channel=RESULTS))
#: `STORE` with the acknowledgement of the task's message: its id, its consumer.
#:
#: Yields whether the consumer still had the message; if not, nothing is stored.
STORE_AND_ACKNOWLEDGE = Statement(
    "store_and_acknowledge",
    sql.load(
        _SQL,
        "store",
        is_ready="true",
        channel=RESULTS,
        **{part: sql.load(_SQL, f"acknowledged_{part}", channel=RESULTS) for part in _PARTS},
    ),
)

#: Reads one result: task.
READ = Statement("read_result", sql.load(_SQL, "read", which="task_id = $1"))
#: Reads several: a JSON array of tasks.
READ_MANY = Statement("read_results", sql.load(_SQL, "read", which=sql.load(_SQL, "among")))
#: Reads those of several that have a final state: the tasks, the final states.
READ_READY = Statement(
    "read_ready_results", sql.load(_SQL, "read", which=sql.load(_SQL, "among_ready"))
)
FORGET = Statement("forget_result", "DELETE FROM pgbeat.results WHERE task_id = $1")

#: Notes a waiter: a JSON array of tasks, its name.
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

#: Returns a part: group, position, task, status, body, content type and encoding, seconds until
#: the chord expires, commit. Yields how many there are, and of how many (NULL: not known yet);
#: nothing if the part was there, or the chord has ended.
RETURN_PART = Statement("return_chord_part", sql.load(_SQL, "return_part"))
#: Drops a part (group, task) that returned once more while its chord was ending.
DROP_LATE_PART = Statement(
    "drop_late_chord_part",
    """
    DELETE FROM pgbeat.chord_parts WHERE group_id = $1 AND task_id = $2
       AND EXISTS (SELECT FROM pgbeat.chords WHERE group_id = $1 AND ended)
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
