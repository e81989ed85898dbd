"""Templates in files."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database.tables import templates as table
from pgbeat.errors import InvalidJob, Problems
from pgbeat.jobs.policy import templates
from pgbeat.jobs.policy.templates import Template
from pgbeat.jobs.verbs import template_control
from pgbeat.schedules.files.fields import FIELDS, FileField
from pgbeat.schedules.files.job_policies import canonical
from pgbeat.schedules.files.kinds import Text
from pgbeat.schedules.files.nouns.noun import FileNoun, Plain, Stored

_TASK = FileField("task", Text("shop.tasks.backup", 255), "A registered task's name.")
_SHARED = ("args", "kwargs", "queue", "options", "job_policy", "description")


class _Templates(FileNoun):
    """Templates, whose fields mean the same as a schedule's."""

    section, name = "templates", "template"
    fields: ClassVar = {"task": _TASK} | {name: FIELDS[name] for name in _SHARED}
    table, columns, row = table, templates.COLUMNS, Template

    def check(self, name: str, given: Plain) -> dict[str, Any]:
        values = self.defaults() | given
        Problems(template_control.problems(values)).raise_if_any(InvalidJob)
        return values

    def values(self, stored: Stored) -> dict[str, Any]:
        values = {name: getattr(stored.row, name) for name in self.fields}
        return values | {"job_policy": canonical(stored.row.job_policy)}

    def write(
        self, unit: UnitOfWork, name: str, values: Mapping[str, Any], changed: set[str] | None
    ) -> None:
        given = {field: values[field] for field in self.fields}
        template_control.put(unit, name, **given, only_new=changed is None)

    def remove(self, unit: UnitOfWork, name: str) -> None:
        template_control.remove(unit, name)


TEMPLATES = _Templates()
