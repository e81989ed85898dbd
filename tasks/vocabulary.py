"""Tasks on the vocabulary: intake, category refresh, consolidation, re-measurement."""

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from itertools import islice
from typing import Any

from sqlalchemy import Connection, case, delete, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from tasks import app
from tasks.store import VERBS, categories, changes, types, vocabulary

_MANNERS = ("mainly", "loosely", "jointly", "formerly", "locally", "recursively", "mutually")
_NAMES = [
    f"{manner}_{'' if known else 'un'}{verb}"
    for known in (True, False)
    for manner in _MANNERS
    for verbs in VERBS.values()
    for verb in verbs
]


@app.task
def take_in(new: int = 3, fading: int = 3) -> dict[str, int]:
    """Adds the results of an extraction: `new` types without a category, and evidence for others.

    Deactivates the `fading` least used types. Returns how many were added and deactivated.
    """
    with vocabulary() as connection:
        number = connection.scalar(select(func.coalesce(func.max(changes.c.id), 0))) or 0
        known = set(connection.scalars(select(types.c.name)))
        names = (_NAMES[(7 * number + 13 * step) % len(_NAMES)] for step in range(len(_NAMES)))
        rows = [
            {"name": name, "source": "llm_generated", "uses": 10, "supporting": 1}
            for name in islice((name for name in names if name not in known), new)
        ]
        added: Sequence[str] = []
        if rows:
            added = connection.scalars(
                upsert(types).values(rows).on_conflict_do_nothing().returning(types.c.name)
            ).all()
        connection.execute(
            update(types)
            .where(types.c.active, func.length(types.c.name) % 3 == number % 3)
            .values(uses=types.c.uses + 1, supporting=types.c.supporting + 1)
        )
        least_used = select(types.c.name).where(types.c.active, types.c.source != "llm_generated")
        least_used = least_used.order_by(types.c.uses, types.c.name).limit(fading)
        faded = connection.scalars(
            update(types)
            .where(types.c.name.in_(least_used))
            .values(active=False)
            .returning(types.c.name)
        ).all()
        _record(connection, "added", *((name, None) for name in added))
        _record(connection, "deactivated", *((name, None) for name in faded))
    return {"added": len(added), "deactivated": len(faded)}


@app.task
def refresh_categories() -> dict[str, Any]:
    """Puts each `llm_generated` type into the category with the most similar name of a type.

    Returns the number of types, in all and by category.
    """
    moved: dict[str, int] = {}
    with vocabulary() as connection:
        known = connection.execute(
            select(types.c.name, types.c.category).where(types.c.category.is_not(None))
        )
        category_of = {row.name: row.category for row in known}
        fresh = connection.scalars(
            select(types.c.name).where(types.c.source == "llm_generated").order_by(types.c.name)
        ).all()
        for name in fresh:
            category = category_of[_most_alike(name, category_of)]
            connection.execute(
                update(types)
                .where(types.c.name == name)
                .values(category=category, source="integrated")
            )
            _record(connection, "integrated", (name, category))
            moved[category] = moved.get(category, 0) + 1
        connection.execute(
            update(categories).where(categories.c.name.in_(moved)).values(refreshed_at=func.now())
        )
    return {"integrated": len(fresh), "categories": moved}


@app.task
def consolidate(limit: int = 8) -> dict[str, int]:
    """Removes up to `limit` inactive types, least used first.

    A type with evidence is merged into the active type of its category with the most similar name;
    others are deleted. Returns how many were merged and deleted.
    """
    merged = 0
    with vocabulary() as connection:
        inactive = connection.execute(
            select(types).where(~types.c.active).order_by(types.c.uses, types.c.name).limit(limit)
        ).all()
        for row in inactive:
            near = connection.scalars(
                select(types.c.name).where(types.c.active, types.c.category == row.category)
            ).all()
            into = None
            if near and row.supporting + row.contradicting:
                into = _most_alike(row.name, near)
                connection.execute(
                    update(types)
                    .where(types.c.name == into)
                    .values(
                        uses=types.c.uses + row.uses,
                        supporting=types.c.supporting + row.supporting,
                        contradicting=types.c.contradicting + row.contradicting,
                    )
                )
                merged += 1
            connection.execute(delete(types).where(types.c.name == row.name))
            _record(connection, "merged" if into else "deleted", (row.name, into))
    return {"merged": merged, "deleted": len(inactive) - merged}


@app.task
def remeasure(since: int = 0, until: int | None = None) -> dict[str, int]:
    """Sets the epistemic status of every type by its evidence.

    `since` and `until` limit the vocabulary changes that led to this. Returns the number of these
    changes, and of types with each status.
    """
    evidence = types.c.supporting + types.c.contradicting
    share = types.c.supporting * 1.0 / evidence
    status = case(
        (evidence < 3, "insufficient_data"),
        (share > 0.8, "affirmative"),
        (share >= 0.4, "contested"),
        else_="contradicted",
    )
    with vocabulary() as connection:
        occasion = select(func.count()).select_from(changes).where(changes.c.id > since)
        if until is not None:
            occasion = occasion.where(changes.c.id <= until)
        counted = connection.scalar(occasion) or 0
        connection.execute(update(types).values(epistemic_status=status, measured_at=func.now()))
        rows = connection.execute(
            select(types.c.epistemic_status, func.count()).group_by(types.c.epistemic_status)
        )
        return {"changes": counted} | {str(name): number for name, number in rows}


def _most_alike(name: str, others: Iterable[str]) -> str:
    matcher = SequenceMatcher(b=name, autojunk=False)

    def likeness(other: str) -> float:
        matcher.set_seq1(other)
        return matcher.ratio()

    return max(sorted(others), key=likeness)


def _record(connection: Connection, change: str, *entries: tuple[str, str | None]) -> None:
    rows = [{"type": name, "change": change, "into": into} for name, into in entries]
    if rows:
        connection.execute(insert(changes), rows)
