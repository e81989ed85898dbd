"""Deletes results that have expired, a little at a time."""

import logging
from datetime import timedelta

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    delete,
    exists,
    func,
    select,
    tuple_,
    update,
)

from pgbeat.database.tables import (
    chord_bodies,
    chord_parts,
    chords,
    result_groups,
    result_waits,
    results,
)
from pgbeat.results.store import Store

logger = logging.getLogger("pgbeat.results")

#: Rows of each table that a step deletes, at most.
BATCH = 1000
#: The age at which a note that a process waits for a result is of no use.
_STALE = timedelta(days=1)


def delete_expired(connection: Connection) -> int:
    """Deletes a batch of what has expired; returns how many rows. No row is waited for.

    `connection` is in autocommit mode, so that each table is a transaction.
    """
    is_over = chords.c.expires_at <= func.now()
    ended = select(chords.c.group_id).where(is_over, chords.c.ended)
    is_bare = [
        ~exists().where(part.c.group_id == chords.c.group_id)
        for part in (chord_parts, chord_bodies)
    ]
    # The header of a chord is needed until the chord ends.
    is_no_header = ~exists().where(chords.c.group_id == result_groups.c.group_id)
    return (
        _end_chords(connection)
        + _delete(connection, results, results.c.expires_at <= func.now())
        + _delete(connection, chord_parts, chord_parts.c.group_id.in_(ended))
        + _delete(connection, chord_bodies, chord_bodies.c.group_id.in_(ended))
        + _delete(connection, chords, is_over, chords.c.ended, *is_bare)
        + _delete(connection, result_groups, result_groups.c.expires_at <= func.now(), is_no_header)
        + _delete(connection, result_waits, result_waits.c.at < func.now() - _STALE)
    )


def delete_all_expired(store: Store) -> None:
    """Deletes what has expired, and lets other threads have the connection after each batch."""
    while True:
        with store.work() as working:
            if not delete_expired(working.connection):
                return


def _end_chords(connection: Connection) -> int:
    """Ends chords that have expired, so that no part counts while the others are deleted."""
    late = _batch(chords, chords.c.expires_at <= func.now(), ~chords.c.ended)
    end = update(chords).where(tuple_(chords.c.group_id).in_(late)).values(ended=True)
    rows = connection.execute(
        end.returning(chords.c.group_id, chords.c.done, chords.c.size + chords.c.added)
    ).all()
    for group_id, done, size in rows:
        logger.warning(
            "Chord %s has expired, and its body never runs: %d of %s parts had returned, the last "
            "one longer ago than result_chord_expires, or result_expires, allows",
            group_id,
            done,
            "an unknown number of" if size is None else size,
        )
    return len(rows)


def _delete(connection: Connection, table: Table, *old: ColumnElement[bool]) -> int:
    key = tuple_(*table.primary_key.columns)
    return connection.execute(delete(table).where(key.in_(_batch(table, *old)))).rowcount


def _batch(table: Table, *old: ColumnElement[bool]) -> Select[tuple[object, ...]]:
    key = table.primary_key.columns
    return select(*key).where(*old).limit(BATCH).with_for_update(skip_locked=True)
