"""`/console/preview`: what the form of a schedule would make, while it is being written."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse

from pgbeat.schedules import mistakes
from pgbeat.schedules import model as schedules
from pgbeat.web.api.schedules import previews
from pgbeat.web.api.schedules.previews import SchedulePreview
from pgbeat.web.api.schedules.schedule_models import NewSchedule, ScheduleChanges
from pgbeat.web.pages import forms
from pgbeat.web.pages.forms import Form
from pgbeat.web.pages.render import AdminVisit, PageRoute, Visit
from pgbeat.web.pages.schedules import schedule_form

router = APIRouter(route_class=PageRoute)

#: Fields that say when it is due.
_WHEN = ("kind", "timetable", "timezone", "starts_at", "ends_at", "calendar", "after_outcome",
    "after_match",
)  # fmt: skip
#: Labels of the form's fields by name.
LABELS = {field.name: field.label for field in (*schedule_form.NEW, *schedule_form.FIELDS)}


class ShownPreview(NamedTuple):
    """What the page shows beside a form."""

    #: `None` if the timetable is not yet valid.
    found: SchedulePreview | None
    #: What is wrong, with the label of its field.
    problems: list[tuple[str, str]]
    is_edit: bool
    #: Whether the condition was asked for.
    is_check: bool


@router.post("/console/preview")
def preview(visit: AdminVisit) -> Response:
    """Shows the preview of a form; `of` is the name of an existing schedule, `do` may be `test`."""
    shown = of_form(visit, name=visit.posted.get("of") or None)
    return HTMLResponse(visit.fragment("preview.html", preview=shown, labels=LABELS))


def of_form(visit: Visit, *, name: str | None) -> ShownPreview:
    """Returns the preview of a new schedule, or of changes of an existing one."""
    is_check = visit.posted.get("do") == "test"
    fields = schedule_form.FIELDS if name else (*schedule_form.NEW, *schedule_form.FIELDS)
    written = visit.given(fields)
    try:
        shown = _preview(visit, name, written, is_check)
        return ShownPreview(shown, [], name is not None, is_check)
    except forms.REFUSED as error:
        wrong = refused(visit, error, name, written, "").errors
    times, also_wrong = _times(visit, written)
    problems = [(LABELS.get(key, key), message) for key, message in {**also_wrong, **wrong}.items()]
    return ShownPreview(times, problems, name is not None, is_check)


def refused(
    visit: Visit, error: Exception, name: str | None, written: dict[str, str], nothing: str
) -> Form:
    """Returns the form that an error refused, with all mistakes, as `forms.refused` does.

    Values are read, checked by themselves and checked together; each step finds mistakes only in
    what the one before accepts. So it is tried again, in a dry run, without what is wrong.
    """

    def form_of(error: Exception) -> Form:
        return visit.refused(error, written, nothing, others=schedule_form.OTHERS)

    def note(error: Exception) -> Collection[str]:
        if not isinstance(error, forms.REFUSED):
            raise error
        mistaken = form_of(error).errors
        fresh = mistaken.keys() - errors
        errors.update((field, mistaken[field]) for field in fresh)
        return () if "" in fresh else fresh

    def without(rest: dict[str, str], fields: Collection[str]) -> dict[str, str]:
        first = forms.before(visit.posted) if name else schedule_form.HARMLESS
        kind = {"kind": first["kind"]} if "timetable" in fields else {}
        return rest | {field: first.get(field, "") for field in fields} | kind

    form = form_of(error)
    errors = dict(form.errors)
    if "" not in errors:
        again = partial(_preview, visit, name, is_check=False)
        mistakes.retried(without(written, errors), again, note, without)
    return form._replace(errors=errors, alert=errors.get("") or form.alert)


def _preview(
    visit: Visit, name: str | None, written: dict[str, str], is_check: bool
) -> SchedulePreview:
    if name is not None:
        return _changed(visit, name, written, is_check)
    body = NewSchedule.model_validate(schedule_form.values(written))
    values = body.model_dump(exclude_unset=True, exclude_none=True)
    with visit.work() as unit:
        return previews.of_new(unit, visit.backend, values, is_check=is_check)


def _changed(visit: Visit, name: str, written: dict[str, str], is_check: bool) -> SchedulePreview:
    with visit.reading() as connection:
        row = schedules.get(connection, name, namespace=visit.namespace)
    changed = visit.changed(written)
    changes: Any = schedule_form.changes(written, changed, row.job_policy)
    if not changes:  # the same owner again changes nothing
        changes = {"owner": row.owner}
    body = ScheduleChanges.model_validate(changes)
    values = body.model_dump(exclude_unset=True)
    with visit.work() as unit:
        return previews.of_changes(unit, visit.backend, name, values, is_check=is_check)


def _times(
    visit: Visit, written: Mapping[str, str]
) -> tuple[SchedulePreview | None, dict[str, str]]:
    """Returns when it would be due, whatever else is wrong, or the mistakes in just that."""
    when = {name: written.get(name, "") for name in _WHEN} | {"name": f"preview {uuid4()}"}
    try:
        body = NewSchedule.model_validate(schedule_form.values(when))
        values = body.model_dump(exclude_unset=True, exclude_none=True)
        with visit.work() as unit:
            return previews.due_times(unit, visit.backend, values | {"task": "-"}), {}
    except forms.REFUSED as error:
        form = visit.refused(error, when, "", others=schedule_form.OTHERS)
        return None, {field: why for field, why in form.errors.items() if field in _WHEN}
