"""`/templates`: named tasks with arguments and a job policy, from which jobs are made."""

from typing import Annotated

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from pgbeat.jobs.policy import templates
from pgbeat.jobs.verbs import template_control
from pgbeat.views import definitions as views
from pgbeat.web.api.bodies import Body, Done, PlainJson, PlainList, example, of_row
from pgbeat.web.calls import AdminCall, TheCall, WebCall

router = APIRouter(prefix="/templates", tags=["templates"])

TemplateName = Annotated[str, Path(max_length=200, examples=["nightly-report"])]


class TemplateFields(Body):
    """A template's fields."""

    model_config = example(
        {
            "task": "tasks.report",
            "kwargs": {"kind": "full"},
            "job_policy": {"lane": "reports", "max_attempts": 5},
        }
    )

    task: str = Field(min_length=1, max_length=255, examples=["tasks.report"])
    args: PlainList = Field(default=[])
    kwargs: PlainJson = Field(default={})
    options: PlainJson = Field(default={}, description="Celery's publish options.")
    queue: str | None = Field(None, min_length=1, max_length=200)
    job_policy: PlainJson = Field(
        default={}, description="The policy of its jobs: lane, priority, retries …"
    )
    description: str | None = Field(None, max_length=2000)


class NewTemplate(TemplateFields):
    """A new template."""

    model_config = example(
        {"name": "nightly-report", "task": "tasks.report", "job_policy": {"lane": "reports"}}
    )

    name: str = Field(min_length=1, max_length=200, examples=["nightly-report"])


@of_row(templates.Template)
class FoundTemplate(BaseModel):
    """A template."""


class TemplateDetail(FoundTemplate):
    """A template with the schedules that use it."""

    schedules: list[str] = Field(
        description="Schedules that name it; for administrators, else empty."
    )


class TemplateList(BaseModel):
    """All templates, by name."""

    templates: list[TemplateDetail]


def _users(connection: Connection, call: WebCall) -> dict[str, list[str]]:
    return templates.users(connection, namespace=call.namespace) if call.caller.sees_all else {}


@router.get("", summary="List templates")
def list_templates(call: TheCall) -> TemplateList:
    """Lists all templates by name."""
    with call.backend.transaction() as connection:
        rows = templates.listing(connection, namespace=call.namespace)
        users = _users(connection, call)
    rows = call.redactor.rows(rows)
    return TemplateList(
        templates=[TemplateDetail.model_validate(views.template(row, users)) for row in rows]
    )


@router.get("/{name}", summary="Get a template")
def get_template(call: TheCall, name: TemplateName) -> TemplateDetail:
    """Returns a template."""
    with call.backend.transaction() as connection:
        row = templates.get(connection, name, namespace=call.namespace)
        row = call.redactor.row(row, row.task)
        users = _users(connection, call)
    return TemplateDetail.model_validate(views.template(row, users))


@router.post("", status_code=201, summary="Create a template")
def create_template(call: AdminCall, body: NewTemplate) -> FoundTemplate:
    """Creates a template, once its task and options are checked against the app."""
    with call.unit() as unit:
        values = body.model_dump(exclude={"name"})
        row, _ = template_control.put(unit, body.name, only_new=True, **values)
    return FoundTemplate.model_validate(views.template(row, {}))


@router.put(
    "/{name}",
    summary="Create or replace a template",
    responses={201: {"model": FoundTemplate, "description": "It is new."}},
)
def put_template(
    call: AdminCall, name: TemplateName, body: TemplateFields, response: Response
) -> FoundTemplate:
    """Creates a template, or replaces all of its fields. Jobs that it made stay as they are."""
    with call.unit() as unit:
        row, before = template_control.put(unit, name, **body.model_dump(exclude={"name"}))
    if before is None:
        response.status_code = 201
    return FoundTemplate.model_validate(views.template(row, {}))


@router.delete("/{name}", summary="Delete a template")
def delete_template(call: AdminCall, name: TemplateName) -> Done:
    """Deletes a template that no schedule names. Jobs that it made stay as they are."""
    with call.unit() as unit:
        template_control.remove(unit, name)
    return Done(message=f"Template '{name}' deleted")
