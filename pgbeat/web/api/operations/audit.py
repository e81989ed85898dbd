"""`/audit`: the audit log, which records the changes that people make."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from pgbeat.access import audit
from pgbeat.web.api.bodies import Next, of_row
from pgbeat.web.api.paging import After, Limit, number, read_one, split
from pgbeat.web.calls import ViewerCall

router = APIRouter(tags=["audit"])

Word = Annotated[str | None, Query(max_length=200)]


@of_row(audit.AuditRecord)
class AuditedChange(BaseModel):
    """A change. `before` and `after` leave out what is the same in both."""

    actor: str = Field(examples=["user:alice"])
    verb: str = Field(examples=["pause"])
    kind: str = Field(examples=["schedule"])
    subject: str = Field(examples=["category_refresh"])
    before: Any = Field(examples=[{"paused_at": None}])
    after: Any = Field(examples=[{"paused_at": "2026-11-21T12:00:00Z"}])


class AuditPage(BaseModel):
    """A page of changes, the newest first."""

    changes: list[AuditedChange]
    next: Next


@router.get("/audit", summary="List changes")
def list_changes(
    call: ViewerCall,
    kind: Word = None,
    subject: Word = None,
    actor: Word = None,
    verb: Word = None,
    limit: Limit = 50,
    after: After = None,
) -> AuditPage:
    """Lists the changes that people made, the newest first.

    They can be filtered by the `kind` of thing, the thing itself (`subject`: its name or id), the
    person and the verb.
    """
    wanted = {"kind": kind, "subject": subject, "actor": actor, "verb": verb}
    before = read_one(after, number)
    with call.listing() as connection:
        rows = audit.listing(
            connection,
            namespace=call.namespace,
            before=before,
            limit=limit + 1,
            redactor=call.redactor,
            **wanted,
        )
    page, following = split(rows, limit, "id")
    changes = [AuditedChange.model_validate(row._asdict()) for row in page]
    return AuditPage(changes=changes, next=following)
