"""`/find`: schedules, tasks, lanes and other things by a part of their name."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from pgbeat.monitoring import finder
from pgbeat.web.calls import TheCall

router = APIRouter(tags=["scheduler"])


class FoundThing(BaseModel):
    """Something that was found."""

    kind: finder.Kind
    name: str = Field(description="Its name; of a job, the id.")
    detail: str = Field(description="A schedule's task; a job's task and state.")


@router.get("/find", summary="Find things by name")
def find(
    call: TheCall,
    text: Annotated[
        str, Query(max_length=200, description="A part of the name, or of an id.")
    ] = "",
) -> list[FoundThing]:
    """Returns up to six of each kind, the closest first: for users, only their own jobs."""
    with call.listing() as connection:
        hits = finder.find(
            connection, call.namespace, call.caller, text, tasks=call.backend.celery.tasks
        )
    return [FoundThing.model_validate(hit, from_attributes=True) for hit in hits]
