"""Forms whose values pgbeat's own functions check and save."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminTextInputWidget
from django.utils import timezone

from pgbeat.database import connections
from pgbeat.errors import InvalidTimetable, PgbeatError
from pgbeat.integrations.django.admin import changes
from pgbeat.timetables import parse_duration, span


class LengthField(forms.Field):
    """A duration in words, such as `15 min`."""

    widget = AdminTextInputWidget

    def prepare_value(self, value: Any) -> Any:
        """Returns the words of a duration; nothing for none."""
        if value is None or isinstance(value, str):
            return value
        return span(value, units=4) if value else ""

    def to_python(self, value: Any) -> Any:
        """Returns the duration. Raises `ValidationError`."""
        if value in self.empty_values:
            return None
        try:
            return parse_duration(value)
        except InvalidTimetable as error:
            raise forms.ValidationError(str(error)) from None

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Returns whether other words were written."""
        return bool((self.prepare_value(initial) or "") != (data or "").strip())


class CheckedForm(forms.ModelForm):
    """Checks the values by the function that saves them, without saving.

    Its errors are shown beside their fields. The model's own checks are left out: they would say
    less, and differently.
    """

    #: The request, set by the page.
    request: Any = None

    def checked(self, values: Mapping[str, Any], *, dry_run: bool) -> Any:
        """Saves the values, or checks them. Raises `PgbeatError`."""
        raise NotImplementedError

    @property
    def is_new(self) -> bool:
        """Whether the form adds a row."""
        return bool(self.instance._state.adding)

    def given(self) -> dict[str, Any]:
        """Returns the values of a new row that were given, or those that were changed."""
        fields = self._meta.model._meta
        values = {}
        for name in self.changed_data:
            field, value = fields.get_field(name), self.cleaned_data.get(name)
            if isinstance(value, datetime) and timezone.is_naive(value):
                value = timezone.make_aware(value)
            if value is None or value == "":
                if self.is_new:
                    continue
                value = None if field.null else field.get_default()
            values[name] = value
        return values

    def without_errors(self, values: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the values to check though fields have errors; `None` to check nothing then."""
        return None

    def _post_clean(self) -> None:
        wrong = set(self.errors)
        values = self.without_errors(self.given()) if wrong else self.given()
        if values is None:
            return
        try:
            self.checked(values, dry_run=True)
        except PgbeatError as error:
            for problem in error.problems:
                if problem.root not in wrong:
                    name = problem.root if problem.root in self.fields else None
                    self.add_error(name, problem.message)
        except changes.SHOWN as error:
            self.add_error(None, connections.first_line(error))

    def save(self, commit: bool = True) -> Any:
        """Saves the values, and returns the model's instance."""
        row = self.checked(self.given(), dry_run=False)
        self.instance.pk = getattr(row, self._meta.model._meta.pk.name)
        self.instance.name = row.name
        return self.instance

    def save_m2m(self) -> None:
        """Saves nothing: there are no related rows."""
