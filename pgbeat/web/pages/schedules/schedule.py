"""`/console/schedules/NAME`: one schedule, its ticks, and its verbs; and the form of a new one."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Response
from sqlalchemy import Connection

from pgbeat.access import audit
from pgbeat.beat.verbs import control as beat_control
from pgbeat.beat.verbs.dry_run import dry_run
from pgbeat.errors import PgbeatError
from pgbeat.monitoring import statistics
from pgbeat.schedules import checked, control, ticks, timetable_words
from pgbeat.schedules import model as schedules
from pgbeat.schedules.model import Schedule
from pgbeat.views import schedules as views
from pgbeat.web.api.paging import moment, number, read, split
from pgbeat.web.api.schedules import decisions
from pgbeat.web.api.schedules import schedules as api
from pgbeat.web.api.schedules.schedule_models import NewSchedule, ScheduleChanges
from pgbeat.web.pages import forms, summaries
from pgbeat.web.pages.forms import Form
from pgbeat.web.pages.jobs import job_fields
from pgbeat.web.pages.render import AdminVisit, Name, PageRoute, ViewerVisit, Visit, path
from pgbeat.web.pages.schedules import schedule_form, schedule_preview
from pgbeat.web.pages.schedules.schedule_preview import ShownPreview
from pgbeat.webhooks import check_ins

router = APIRouter(route_class=PageRoute)

_PAGE = 25
#: The newest changes that the page shows.
_CHANGES = 5


@router.get("/console/schedules/{name:path}")
def schedule_page(visit: ViewerVisit, name: Name, after: str = "") -> Response:
    """Shows a schedule."""
    return _show(visit, name, after=after)


def _show(
    visit: Visit, name: str, *, after: str = "", form: Form | None = None, **more: Any
) -> Response:
    before = read(after or None, moment, number)
    with visit.reading() as connection:
        row = schedules.get(connection, name, namespace=visit.namespace)
        page = ticks.history(connection, row.id, before=before, limit=_PAGE + 1)
        numbers = statistics.of_schedule(connection, row.id)
        check_in = check_ins.last(connection, row.id)
        sparks = summaries.sparks(connection, [row], visit.redactor.error)[row.id]
        health = api.healths(visit.backend, connection, [row])[row.id]
        offers = job_fields.offers(connection, visit.backend, schedule_form.FIELDS)
        changed = audit.listing(
            connection, namespace=visit.namespace, kind="schedule", subject=name, limit=_CHANGES
        )
        coming, trouble = _forecast(visit, connection, row)
    history, following = split(page, _PAGE, "due_at", "id")
    redactor = visit.redactor
    row, health = redactor.row(row, row.task), redactor.health(health, row.task)
    return visit.page(
        "schedule.html",
        "schedules",
        form=form or forms.original(schedule_form.written(row)),
        row=row,
        timetable=timetable_words.timetable(row, visit.backend.timezone),
        history=[redactor.tick(tick, row.task) for tick in history],
        next=following,
        after=after,
        sparks=sparks,
        health=health,
        numbers=numbers,
        check_in=check_in,
        coming=coming,
        trouble=trouble,
        sections=schedule_form.SECTIONS,
        offers=offers,
        labels=schedule_preview.LABELS,
        history_of=[redactor.audited(change) for change in changed],
        **{"would": None, "shown_preview": None} | more,
    )


def _forecast(
    visit: Visit, connection: Connection, row: Schedule
) -> tuple[list[dict[str, Any]], str]:
    """Returns the next due times, or why they are unknown."""
    if not row.enabled or row.paused_at is not None or row.after is not None:
        return [], ""
    zone = visit.backend.timezone
    try:
        coming = views.forecast(connection, row, visit.now, zone, visit.redactor, 5)
    except PgbeatError as error:  # an invalid calendar or timetable
        return [], str(error)
    return coming["times"], ""


# -- new

_ALL = (*schedule_form.NEW, *schedule_form.FIELDS)


@router.get("/console/new/schedule")
def new_schedule_page(visit: AdminVisit, task: str = "", template: str = "") -> Response:
    """Shows the form, of a task or template if given."""
    values = {"task": task[:255], "job_policy.template": template[:200]}
    return _new(visit, Form(schedule_form.START | values))


def _new(visit: Visit, form: Form, preview: ShownPreview | None = None) -> Response:
    with visit.reading() as connection:
        offers = job_fields.offers(connection, visit.backend, _ALL)
    return visit.page(
        "new_schedule.html",
        "schedules",
        form=form,
        fields=schedule_form.NEW,
        sections=schedule_form.SECTIONS,
        offers=offers,
        timezone=visit.backend.timezone,
        shown_preview=preview,
        labels=schedule_preview.LABELS,
    )


@router.post("/console/new/schedule")
def make_schedule(visit: AdminVisit) -> Response:
    """Creates the schedule, or shows the form with its mistakes."""
    written = visit.given(_ALL)
    if visit.posted.get("do") in ("preview", "test"):
        return _new(visit, Form(written), schedule_preview.of_form(visit, name=None))
    try:
        body = NewSchedule.model_validate(schedule_form.values(written))
        with visit.unit() as unit:
            row = checked.add(unit, body.model_dump(exclude_unset=True, exclude_none=True))
    except forms.REFUSED as error:
        nothing = "No schedule was created"
        form = schedule_preview.refused(visit, error, None, written, nothing)
        return _new(visit, form)
    return visit.redirect(path("schedules", row.name), f"Schedule '{row.name}' was created.")


# -- changing


@router.post("/console/schedules/{name:path}")
def change_schedule(visit: AdminVisit, name: Name) -> Response:
    """Does what the form's `do` says."""
    verb = visit.posted.get("do", "")
    here = path("schedules", name)
    try:
        if verb == "check":
            with visit.backend.session() as connection:
                would = dry_run(connection, visit.backend.celery, visit.backend.settings, name)
            return _show(visit, name, would=would)
        if verb in ("preview", "test"):
            form = Form(visit.given(schedule_form.FIELDS), before=visit.posted.get("before", ""))
            shown = schedule_preview.of_form(visit, name=name)
            return _show(visit, name, form=form, shown_preview=shown)
        if verb == "edit":
            return _edit(visit, name)
        if verb == "trigger":
            with visit.work() as unit:
                tick = beat_control.trigger(unit, name, job_source="user_api").tick
            is_good = tick.outcome != "failed"
            return visit.redirect(here, decisions.triggered(tick), is_good=is_good)
        if verb == "delete":
            with visit.unit() as unit:
                row = control.remove(unit, name)
            note = checked.ADDED if row.source == "code" else ""
            return visit.redirect(path("schedules"), _sentence(name, "deleted", note))
        switch, past = _SWITCHES[visit.verb(_SWITCHES)]
        more = {"reason": visit.reason(2000)} if verb == "pause" else {}
        with visit.unit() as unit:
            switch(unit, name, **more)
        return visit.redirect(here, _sentence(name, past))
    except PgbeatError as error:
        return _show(visit, name, error=error)


_SWITCHES: dict[str, tuple[Callable[..., object], str]] = {
    "pause": (control.pause, "paused"),
    "resume": (control.resume, "resumed"),
    "enable": (control.enable, "enabled"),
    "disable": (control.disable, "disabled"),
}


def _sentence(name: str, past: str, note: str = "") -> str:
    return f"Schedule '{name}' {past}." + (f" Note: {note}." if note else "")


def _edit(visit: Visit, name: str) -> Response:
    written = visit.given(schedule_form.FIELDS)
    changed = visit.changed(written)
    with visit.reading() as connection:
        row = schedules.get(connection, name, namespace=visit.namespace)
    try:
        changes: Any = schedule_form.changes(written, changed, row.job_policy)
        if not changes:
            return visit.redirect(path("schedules", name), "Nothing was changed.")
        body = ScheduleChanges.model_validate(changes)
        with visit.unit() as unit:
            row = checked.edit(unit, name, body.model_dump(exclude_unset=True)).after
    except forms.REFUSED as error:
        nothing = "Nothing was changed"
        form = schedule_preview.refused(visit, error, name, written, nothing)
        return _show(visit, name, form=form)
    is_reset = row.source == "code" and checked.CODE_OWNS & body.model_fields_set
    note = checked.RESET if is_reset else ""
    return visit.redirect(path("schedules", name), _sentence(name, "updated", note))
