"""What pgbeat's pages of the admin site have in common."""

from collections.abc import Callable
from typing import Any, ClassVar
from urllib.parse import quote

from django.contrib import admin, messages
from django.contrib.admin.options import ShowFacets
from django.contrib.admin.views.main import ChangeList
from django.contrib.admin.widgets import AdminTextareaWidget
from django.core.paginator import Paginator
from django.db import models
from django.http import HttpResponseRedirect
from django.utils.functional import cached_property
from django.utils.html import format_html_join
from django.utils.safestring import mark_safe

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database import connections
from pgbeat.integrations.django import schema
from pgbeat.integrations.django.admin import changes
from pgbeat.integrations.django.admin.forms import CheckedForm, LengthField

#: The most rows of a list; older ones are found by filters and by search.
MOST = 10_000


class BoundedPaginator(Paginator):
    """Counts rows up to `MOST`, so that a list costs the same however long the history is."""

    @cached_property
    def count(self) -> int:
        """The number of rows in the list."""
        return int(self.object_list.order_by()[:MOST].count())


class BoundedList(ChangeList):
    """A list in the order of an index, whatever the request asks for."""

    def get_ordering(self, request: Any, queryset: Any) -> list[str]:
        """Returns the model's own order."""
        return list(self.model._meta.ordering)

    def get_results(self, request: Any) -> None:
        """Reads the rows of the page, and masks them."""
        super().get_results(request)
        rows = list(vars(self)["result_list"])
        for row in rows:
            changes.mask(request, row)
        self.result_list: Any = rows


class Page(admin.ModelAdmin):
    """Shows rows and changes them by pgbeat's functions."""

    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    paginator = BoundedPaginator
    list_per_page = 50
    sortable_by: ClassVar[Any] = ()
    #: The fields by which a list may be filtered.
    filters: ClassVar[Any] = ()
    #: The console's page of a row, below its root: its path, and the attribute that names the row.
    console_path, console_key = "", "pk"
    formfield_overrides: ClassVar[Any] = {
        models.DurationField: {"form_class": LengthField},
        models.JSONField: {"widget": AdminTextareaWidget({"rows": 2})},
        models.TextField: {"widget": AdminTextareaWidget({"rows": 3})},
    }

    def get_changelist(self, request: Any, **kwargs: Any) -> Any:
        """Returns the class of the list."""
        return BoundedList

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        """Returns whether a list may be filtered so: other filters would scan the history."""
        return lookup.removesuffix("__exact") in self.filters

    def view_on_site(self, obj: Any) -> str | None:
        """Returns the URL of the console's page, if `pgbeat_web_url` says where the console is."""
        root = schema.settings().web_url
        if not root:
            return None
        name = quote(str(getattr(obj, self.console_key)))
        return f"{root.rstrip('/')}/console/{self.console_path}/{name}"

    @admin.display(description="task")
    def named_task(self, row: Any) -> Any:
        """Returns the name of the task, which may wrap after its dots."""
        parts = (row.task or "").split(".")
        return format_html_join(mark_safe(".<wbr>"), "{}", ([part] for part in parts))

    # -- permissions, if the tables can be read here

    def has_module_permission(self, request: Any) -> bool:
        """Returns whether the user may see the section of pgbeat."""
        return schema.is_readable() and super().has_module_permission(request)

    def has_view_permission(self, request: Any, obj: Any = None) -> bool:
        """Returns whether the user may see rows."""
        return schema.is_readable() and super().has_view_permission(request, obj)

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Returns whether the user may change rows."""
        return schema.is_readable() and super().has_change_permission(request, obj)

    def get_object(self, request: Any, object_id: str, from_field: Any = None) -> Any:
        """Returns a row, masked unless it is for a form, which would save the masks."""
        row = super().get_object(request, object_id, from_field)
        if row is not None and not self.has_change_permission(request, row):
            changes.mask(request, row)
        return row

    # -- saving

    def get_form(self, request: Any, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        """Returns the form's class, with the request."""
        form_class = super().get_form(request, obj, change, **kwargs)
        form_class.request = request
        return form_class

    def save_form(self, request: Any, form: CheckedForm, change: bool) -> Any:
        """Returns the instance; `save_model` saves it."""
        return form.instance

    def save_model(self, request: Any, obj: Any, form: CheckedForm, change: bool) -> None:
        """Saves the form. Raises `PgbeatError`."""
        form.save()

    def changeform_view(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Shows a page; one whose change is refused at the last moment says so."""
        view = super().changeform_view
        return _shown(request, lambda: view(request, *args, **kwargs))

    def get_actions(self, request: Any) -> Any:
        """Returns the actions without Django's own deletion, which doesn't say what was refused."""
        return {
            name: action
            for name, action in super().get_actions(request).items()
            if name != "delete_selected"
        }

    def delete_view(self, request: Any, object_id: str, extra_context: Any = None) -> Any:
        """Deletes a row, or says why not."""
        view = super().delete_view
        return _shown(request, lambda: view(request, object_id, extra_context))

    def delete_model(self, request: Any, obj: Any) -> None:
        """Deletes a row. Raises `PgbeatError`."""
        with changes.work(request) as unit, unit.transaction():
            self.remove(unit, obj)

    def remove(self, unit: UnitOfWork, obj: Any) -> None:
        """Deletes a row. Raises `PgbeatError`."""
        raise NotImplementedError


def action(
    name: str,
    nouns: str,
    past: str,
    verb: Callable[[UnitOfWork, Any], object],
    *,
    is_whole: bool = True,
) -> Any:
    """Returns an action of a list, which applies a verb to the selected rows (`changes.act`)."""

    def act(page: Page, request: Any, rows: Any) -> None:
        changes.act(request, rows, past, verb, is_whole=is_whole)

    act.__name__ = name
    description = f"{name.capitalize()} selected {nouns}"
    return admin.action(description=description, permissions=["change"])(act)


def _shown(request: Any, view: Callable[[], Any]) -> Any:
    """Returns the view's response; the page again, with the error, if a change is refused."""
    try:
        return view()
    except changes.SHOWN as error:
        if request.method != "POST":
            raise
        messages.error(request, connections.first_line(error))
        return HttpResponseRedirect(request.get_full_path())
