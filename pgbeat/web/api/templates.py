"""`/templates`: named tasks, with arguments and a job policy, that jobs are made from."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pgbeat.jobs import template_control, templates
from pgbeat.jobs.templates import Template
from pgbeat.web.api.bodies import Body, Json
from pgbeat.web.api.steering import plain
from pgbeat.web.backend import TheBackend
from pgbeat.web.identity import TheAdmin, TheCaller

router = APIRouter(prefix="/templates", tags=["templates"])

TemplateName = Annotated[str, Path(max_length=200, examples=["nightly-report"])]


class TemplateFields(Body):
    """All that a template says."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "task": "tasks.report",
                    "kwargs": {"kind": "full"},
                    "job_policy": {"lane": "reports", "max_attempts": 5},
                }
            ]
        }
    )

    task: str = Field(min_length=1, max_length=255, examples=["tasks.report"])
    args: Annotated[list[Any], AfterValidator(plain)] = Field(default=[])
    kwargs: Annotated[Json, AfterValidator(plain)] = Field(default={})
    options: Annotated[Json, AfterValidator(plain)] = Field(
        default={}, description="Celery's publish options."
    )
    queue: str | None = Field(None, min_length=1, max_length=200)
    job_policy: Annotated[Json, AfterValidator(plain)] = Field(
        default={}, description="Its job policy: lane, priority, retries …"
    )
    description: str | None = Field(None, max_length=2000)


class NewTemplate(TemplateFields):
    """A template that is to be made."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "nightly-report",
                    "task": "tasks.report",
                    "job_policy": {"lane": "reports"},
                }
            ]
        }
    )

    name: str = Field(min_length=1, max_length=200, examples=["nightly-report"])


class FoundTemplate(BaseModel):
    """A template."""

    name: str
    description: str | None
    task: str
    args: list[Any]
    kwargs: Json
    options: Json
    queue: str | None
    job_policy: Json
    created_by: str | None
    created_at: datetime
    updated_at: datetime


class TemplateDetail(FoundTemplate):
    """A template with who uses it."""

    schedules: list[str] = Field(
        description="Schedules that name it; for administrators, else empty."
    )


class TemplateList(BaseModel):
    """All templates, by name."""

    templates: list[TemplateDetail]


class TemplateDone(BaseModel):
    """That it was done."""

    success: bool = True
    message: str


def _detail(row: Template, users: dict[str, list[str]]) -> TemplateDetail:
    return TemplateDetail.model_validate(row._asdict() | {"schedules": users.get(row.name, [])})


@router.get("", summary="List templates")
def list_templates(backend: TheBackend, caller: TheCaller) -> TemplateList:
    """All templates, by name."""
    with backend.transaction() as connection:
        rows = templates.listing(connection, namespace=backend.namespace)
        users = {}
        if caller.is_admin:
            users = templates.users(connection, namespace=backend.namespace)
    return TemplateList(templates=[_detail(row, users) for row in rows])


@router.get("/{name}", summary="Get a template")
def get_template(backend: TheBackend, caller: TheCaller, name: TemplateName) -> TemplateDetail:
    """A template."""
    with backend.transaction() as connection:
        row = templates.get(connection, name, namespace=backend.namespace)
        users = {}
        if caller.is_admin:
            users = templates.users(connection, namespace=backend.namespace)
    return _detail(row, users)


@router.post("", status_code=201, summary="Make a template")
def create_template(backend: TheBackend, caller: TheAdmin, body: NewTemplate) -> FoundTemplate:
    """Makes a template. Its task and options are checked against the app."""
    with backend.unit(caller) as unit:
        values = body.model_dump(exclude={"name"})
        row, _ = template_control.put(unit, body.name, only_new=True, **values)
    return FoundTemplate.model_validate(row._asdict())


@router.put(
    "/{name}",
    summary="Make a template, or have it be just this",
    responses={201: {"model": FoundTemplate, "description": "It is new."}},
)
def put_template(
    backend: TheBackend,
    caller: TheAdmin,
    name: TemplateName,
    body: TemplateFields,
    response: Response,
) -> FoundTemplate:
    """Makes a template, or gives the one of that name all of this instead of what it had. Jobs that
    were made from it go on as they are."""
    with backend.unit(caller) as unit:
        row, before = template_control.put(unit, name, **body.model_dump(exclude={"name"}))
    if before is None:
        response.status_code = 201
    return FoundTemplate.model_validate(row._asdict())


@router.delete("/{name}", summary="Delete a template")
def delete_template(backend: TheBackend, caller: TheAdmin, name: TemplateName) -> TemplateDone:
    """Deletes a template that no schedule names. Jobs that were made from it go on."""
    with backend.unit(caller) as unit:
        template_control.remove(unit, name)
    return TemplateDone(message=f"Template '{name}' deleted")
