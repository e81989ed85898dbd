"""Deletes results that have expired, a little at a time."""

from datetime import timedelta

from sqlalchemy import ColumnElement, Connection, Table, delete, exists, func, select, tuple_

from pgbeat.database.tables import (
    chord_bodies,
    chord_parts,
    chords,
    result_groups,
    result_waits,
    results,
)

#: Rows of each table that a step deletes, at most.
BATCH = 1000
#: After this time a note of who waits for a result is of no use.
_STALE = timedelta(days=1)


def delete_expired(connection: Connection) -> int:
    """Deletes a batch of what has expired; returns how many rows. No row is waited for.

    `connection` is in autocommit mode, so that each table is a transaction.
    """
    ended = select(chords.c.group_id).where(chords.c.expires_at <= func.now())
    is_bare = [
        ~exists().where(each.c.group_id == chords.c.group_id)
        for each in (chord_parts, chord_bodies)
    ]
    return (
        _delete(connection, results, results.c.expires_at <= func.now())
        + _delete(connection, result_groups, result_groups.c.expires_at <= func.now())
        + _delete(connection, chord_parts, chord_parts.c.group_id.in_(ended))
        + _delete(connection, chord_bodies, chord_bodies.c.group_id.in_(ended))
        + _delete(connection, chords, chords.c.expires_at <= func.now(), *is_bare)
        + _delete(connection, result_waits, result_waits.c.at < func.now() - _STALE)
    )


def _delete(connection: Connection, table: Table, *old: ColumnElement[bool]) -> int:
    key = table.primary_key.columns
    batch = select(*key).where(*old).limit(BATCH).with_for_update(skip_locked=True)
    return connection.execute(delete(table).where(tuple_(*key).in_(batch))).rowcount
