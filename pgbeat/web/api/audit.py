"""`/audit`: who changed what."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from pgbeat.access import audit
from pgbeat.web.api.paging import After, Limit, cursor, number, read
from pgbeat.web.backend import TheBackend
from pgbeat.web.identity import TheAdmin

router = APIRouter(tags=["audit"])

Word = Annotated[str | None, Query(max_length=200)]


class AuditedChange(BaseModel):
    """A change that was made. Of `before` and `after`, what was the same in both is left out."""

    id: int
    at: datetime
    actor: str = Field(examples=["user:alice"])
    origin: Literal["cli", "api", "page"]
    verb: str = Field(examples=["pause"])
    kind: str = Field(examples=["schedule"])
    subject: str = Field(examples=["category_refresh"])
    before: Any = Field(examples=[{"paused_at": None}])
    after: Any = Field(examples=[{"paused_at": "2026-11-21T12:00:00Z"}])


class AuditPage(BaseModel):
    """A page of changes, the newest first."""

    changes: list[AuditedChange]
    next: str | None = Field(description="For the next page; null on the last one.")


@router.get("/audit", summary="List changes")
def list_changes(
    backend: TheBackend,
    caller: TheAdmin,
    kind: Word = None,
    subject: Word = None,
    actor: Word = None,
    verb: Word = None,
    limit: Limit = 50,
    after: After = None,
) -> AuditPage:
    """Changes made by people, the newest first: of a `kind` of thing, of one (`subject`: its name
    or id), by one person."""
    before = None if after is None else read(after, number)[0]
    with backend.transaction() as connection:
        rows = audit.listing(
            connection, namespace=backend.namespace, kind=kind, subject=subject, actor=actor,
            verb=verb, before=before, limit=limit + 1,
        )  # fmt: skip
    more = rows[limit - 1].id if len(rows) > limit else None
    return AuditPage(
        changes=[AuditedChange.model_validate(row._asdict()) for row in rows[:limit]],
        next=None if more is None else cursor(more),
    )
