"""`/console/templates`: named tasks with arguments and a policy, that jobs are made from."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from pgbeat.database import connections
from pgbeat.errors import PgbeatError
from pgbeat.jobs import templates
from pgbeat.jobs.templates import Template
from pgbeat.web.api import templates as api
from pgbeat.web.backend import Backend, TheBackend
from pgbeat.web.identity import Caller, TheAdmin, TheCaller
from pgbeat.web.pages import forms, job_fields, summaries
from pgbeat.web.pages.forms import Field, Form, Section
from pgbeat.web.pages.render import Fields, PageRoute, done, page, path, said_of, unknown

router = APIRouter(route_class=PageRoute)

Name = Annotated[str, Path(max_length=200)]

_NAME = Field("name", "Name", hint="such as nightly-report; without a slash")
_WHAT = (
    job_fields.TASK,
    job_fields.ARGS,
    job_fields.KWARGS,
    Field("description", "Description", is_wide=True),
)
_SECTIONS = (
    *job_fields.sections("job_policy."),
    Section("How it is published", (job_fields.QUEUE, job_fields.OPTIONS), "queue, options"),
)
_ALL = (*_WHAT, *forms.all_of(_SECTIONS))


@router.get("/console/templates")
def templates_page(request: Request, backend: TheBackend, caller: TheCaller) -> Response:
    """All templates."""
    with backend.transaction() as connection:
        now = connections.now(connection)
        rows = templates.listing(connection, namespace=backend.namespace)
    return page(
        request, "templates.html", caller=caller, backend=backend, here="templates", now=now,
        rows=rows,
    )  # fmt: skip


# -- made


@router.get("/console/new/template")
def new_template_page(request: Request, backend: TheBackend, caller: TheAdmin) -> Response:
    """The form that makes one."""
    return _new(request, backend, caller, Form({}))


def _new(
    request: Request, backend: Backend, caller: Caller, form: Form, *, status: int = 200
) -> Response:
    with backend.transaction() as connection:
        offers = job_fields.offers(connection, backend, _ALL)
    error = forms.headline(form.errors, "Nothing was made")
    return page(
        request, "new_template.html", caller=caller, backend=backend, here="templates", form=form,
        what=(_NAME, *_WHAT), sections=_SECTIONS, offers=offers, status=status, error=error,
    )  # fmt: skip


@router.post("/console/new/template")
def make_template(
    request: Request, backend: TheBackend, caller: TheAdmin, posted: Fields
) -> Response:
    """Makes it, or says beside the fields why not."""
    written = forms.given((_NAME, *_ALL), posted)
    try:
        values = _values(written)
        made = api.create_template(backend, caller, api.NewTemplate.model_validate(values))
    except forms.REFUSED as error:
        status, errors = forms.refused(request, error, written)
        return _new(request, backend, caller, Form(written, errors), status=status)
    return done(request, path("templates", made.name), f"Template '{made.name}' was made.")


def _values(written: Mapping[str, str]) -> dict[str, Any]:
    errors = {key: f"it needs a {key}" for key in ("name", "task") if not written.get(key, key)}
    filled = {key: value for key, value in written.items() if value}
    try:
        found = forms.read((_NAME, *_ALL), filled)
    except forms.Mistakes as mistakes:
        errors |= mistakes.errors
    if errors:
        raise forms.Mistakes(errors)
    return found | {"job_policy": job_fields.merged({}, found, "job_policy.")}


# -- one


@router.get("/console/templates/{name}")
def template_page(request: Request, backend: TheBackend, caller: TheCaller, name: Name) -> Response:
    """One template."""
    return _show(request, backend, caller, name)


def _show(
    request: Request,
    backend: Backend,
    caller: Caller,
    name: str,
    *,
    form: Form | None = None,
    status: int = 200,
    error: str | None = None,
) -> Response:
    with backend.transaction() as connection:
        now = connections.now(connection)
        row = templates.get(connection, name, namespace=backend.namespace)
        users = []
        if caller.is_admin:
            users = summaries.users_of_template(connection, name, backend.namespace)
        offers = job_fields.offers(connection, backend, _ALL)
    written = _written(row)
    return page(
        request, "template.html", caller=caller, backend=backend, here="templates", now=now,
        row=row, form_was=written, users=users, what=_WHAT, sections=_SECTIONS,
        form=form or Form(written, before=json.dumps(written)), offers=offers, status=status,
        error=error,
    )  # fmt: skip


def _written(row: Template) -> dict[str, str]:
    own = {
        each.name: forms.text(each.kind, getattr(row, each.name))
        for each in _ALL
        if not each.name.startswith("job_policy.")
    }
    policy = job_fields.written(row.job_policy, "job_policy.")
    return own | {each.name: policy[each.name] for each in _ALL if each.name in policy}


@router.post("/console/templates/{name}")
def change_template(
    request: Request, backend: TheBackend, caller: TheAdmin, name: Name, posted: Fields
) -> Response:
    """Changes the template, or deletes it: `do`."""
    verb = posted.get("do", "")
    with backend.transaction() as connection:
        row = templates.get(connection, name, namespace=backend.namespace)
    try:
        if verb == "edit":
            return _edit(request, backend, caller, row, posted)
        if verb == "delete":
            said = api.delete_template(backend, caller, name).message
            return done(request, path("templates"), f"{said}.")
    except PgbeatError as error:
        status, _, detail = said_of(request, error)
        return _show(request, backend, caller, name, status=status, error=detail)
    raise unknown(posted)


def _edit(
    request: Request, backend: Backend, caller: Caller, row: Template, posted: Mapping[str, str]
) -> Response:
    written = forms.given(_ALL, posted)
    before = forms.before(posted)
    changed = {key: value for key, value in written.items() if value != before.get(key, "")}
    if not changed:
        return done(request, path("templates", row.name), "Nothing was changed.")
    try:
        # What somebody else changed meanwhile in another field stays.
        values = _values(_written(row) | changed)
        body = api.TemplateFields.model_validate(values)
        api.put_template(backend, caller, row.name, body, Response())
    except forms.REFUSED as error:
        status, errors = forms.refused(request, error, written)
        form = Form(written, errors, posted.get("before", ""))
        said = forms.headline(errors, "Nothing was changed")
        return _show(request, backend, caller, row.name, form=form, status=status, error=said)
    return done(request, path("templates", row.name), f"Template '{row.name}' was changed.")
