"""`/templates`: named tasks, with arguments and a job policy, that jobs are made from."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pgbeat.access import audit
from pgbeat.broker.publishing.publisher import check_options
from pgbeat.errors import AlreadyExists
from pgbeat.jobs import templates
from pgbeat.jobs.prepare import require_call
from pgbeat.jobs.task_checks import check_task
from pgbeat.jobs.templates import Template
from pgbeat.web.api.bodies import Body, Json
from pgbeat.web.api.steering import plain
from pgbeat.web.backend import Backend, TheBackend
from pgbeat.web.identity import Caller, TheAdmin, TheCaller, author

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
    row, _ = _put(backend, caller, body.name, body, is_new=True)
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
    row, is_new = _put(backend, caller, name, body)
    if is_new:
        response.status_code = 201
    return FoundTemplate.model_validate(row._asdict())


def _put(
    backend: Backend, caller: Caller, name: str, body: TemplateFields, *, is_new: bool = False
) -> tuple[Template, bool]:
    where = {} if body.queue is None else {"queue": body.queue}
    check_options({**where, **body.options}, backend.celery.conf)
    require_call(caller, body.task, body.options)
    check_task(backend.celery, body.task)
    values = body.model_dump(exclude={"name"})
    with backend.transaction() as connection:
        before = templates.load(connection, [name], namespace=backend.namespace).get(name)
        if before is not None and is_new:
            raise AlreadyExists(f"there is a template {name!r} already; PUT changes it")
        row = templates.put(
            connection, name, namespace=backend.namespace, created_by=caller.name, **values
        )
        verb = "create" if before is None else "update"
        audit.record(connection, author(backend, caller), verb, before, row)
    return row, before is None


@router.delete("/{name}", summary="Delete a template")
def delete_template(backend: TheBackend, caller: TheAdmin, name: TemplateName) -> TemplateDone:
    """Deletes a template that no schedule names. Jobs that were made from it go on."""
    with backend.transaction() as connection:
        before = templates.get(connection, name, namespace=backend.namespace, for_update=True)
        templates.remove(connection, name, namespace=backend.namespace)
        audit.record(connection, author(backend, caller), "delete", before, None)
    return TemplateDone(message=f"Template '{name}' deleted")
