"""`/console/templates`: templates, from which jobs are made."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response

from pgbeat.errors import PgbeatError
from pgbeat.jobs.policy import templates
from pgbeat.jobs.policy.templates import Template
from pgbeat.jobs.verbs import template_control
from pgbeat.web.pages import forms
from pgbeat.web.pages.forms import Form, FormField, wide
from pgbeat.web.pages.jobs import job_fields
from pgbeat.web.pages.render import AdminVisit, Name, PageRoute, TheVisit, Visit, path

router = APIRouter(route_class=PageRoute)

_NAME = FormField("name", "Name", hint="such as nightly-report; without a slash")
_WHAT = (job_fields.TASK, job_fields.ARGS, job_fields.KWARGS, wide("description", "Description"))
_SECTIONS = (*job_fields.sections("job_policy."), job_fields.PUBLISHING)
_ALL = (*_WHAT, *forms.all_of(_SECTIONS))


@router.get("/console/templates")
def templates_page(visit: TheVisit) -> Response:
    """Shows all templates."""
    with visit.reading() as connection:
        rows = visit.redactor.rows(templates.listing(connection, namespace=visit.namespace))
    return visit.page("templates.html", "templates", rows=rows)


# -- new


@router.get("/console/new/template")
def new_template_page(visit: AdminVisit) -> Response:
    """Shows the form."""
    return _new(visit, Form({}))


def _new(visit: Visit, form: Form) -> Response:
    with visit.reading() as connection:
        offers = job_fields.offers(connection, visit.backend, _ALL)
    return visit.page(
        "new_template.html",
        "templates",
        form=form,
        fields=(_NAME, *_WHAT),
        sections=_SECTIONS,
        offers=offers,
    )


@router.post("/console/new/template")
def make_template(visit: AdminVisit) -> Response:
    """Creates the template, or shows the form with its mistakes."""
    written = visit.given((_NAME, *_ALL))
    try:
        with visit.unit() as unit:
            row = template_control.put(unit, only_new=True, **_values(written)).template
    except forms.REFUSED as error:
        return _new(visit, visit.refused(error, written, "No template was created"))
    return visit.redirect(path("templates", row.name), f"Template '{row.name}' was created.")


def _values(written: Mapping[str, str]) -> dict[str, Any]:
    """Returns the template as the API takes it. Raises `Mistakes`."""
    errors = {key: f"the {key} is missing" for key in ("name", "task") if not written.get(key, key)}
    filled = {key: value for key, value in written.items() if value}
    try:
        values = forms.read((_NAME, *_ALL), filled)
    except forms.Mistakes as mistakes:
        errors |= mistakes.errors
    if errors:
        raise forms.Mistakes(errors)
    return values | {"job_policy": job_fields.merged({}, values, "job_policy.")}


# -- one


@router.get("/console/templates/{name}")
def template_page(visit: TheVisit, name: Name) -> Response:
    """Shows a template."""
    return _show(visit, name)


def _show(
    visit: Visit, name: str, *, form: Form | None = None, error: Exception | None = None
) -> Response:
    users = []
    with visit.reading() as connection:
        row = templates.get(connection, name, namespace=visit.namespace)
        if visit.caller.sees_all:
            users = templates.users(connection, namespace=visit.namespace).get(name, [])
        offers = job_fields.offers(connection, visit.backend, _ALL)
    row = visit.redactor.row(row, row.task)
    written = _written(row)
    return visit.page(
        "template.html",
        "templates",
        form=form or forms.original(written),
        error=error,
        row=row,
        form_was=written,
        users=users,
        what=_WHAT,
        sections=_SECTIONS,
        offers=offers,
    )


def _written(row: Template) -> dict[str, str]:
    texts = {
        field.name: forms.text(field.kind, getattr(row, field.name))
        for field in _ALL
        if not field.name.startswith("job_policy.")
    }
    policy = job_fields.written(row.job_policy, "job_policy.")
    return texts | {field.name: policy[field.name] for field in _ALL if field.name in policy}


@router.post("/console/templates/{name}")
def change_template(visit: AdminVisit, name: Name) -> Response:
    """Changes or deletes the template, by the form's `do`."""
    try:
        if visit.verb(("edit", "delete")) == "edit":
            return _edit(visit, name)
        with visit.unit() as unit:
            template_control.remove(unit, name)
    except PgbeatError as error:
        return _show(visit, name, error=error)
    return visit.redirect(path("templates"), f"Template '{name}' deleted.")


def _edit(visit: Visit, name: str) -> Response:
    with visit.reading() as connection:
        row = templates.get(connection, name, namespace=visit.namespace)
    written = visit.given(_ALL)
    changed = visit.changed(written)
    if not changed:
        return visit.redirect(path("templates", name), "Nothing was changed.")
    try:
        # Fields that another person changed meanwhile stay.
        values = _values(_written(row) | changed)
        with visit.unit() as unit:
            template_control.put(unit, name, **values)
    except forms.REFUSED as error:
        return _show(visit, name, form=visit.refused(error, written, "Nothing was changed"))
    return visit.redirect(path("templates", name), f"Template '{name}' was changed.")
