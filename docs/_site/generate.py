"""Fills in the parts of the reference that the code knows best.

mkdocs loads this file as a hook. A page asks for a part by a line `<!-- generated: NAME -->`.
"""

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from celery import Celery
from sqlalchemy import Column, Table
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import URL, make_url

from pgbeat.broker.transport.options import Options
from pgbeat.cli.schedules.whole_names import schedules_command
from pgbeat.config import Settings
from pgbeat.database import migrations, tables
from pgbeat.jobs.searching.query import TERMS
from pgbeat.monitoring.metrics.families import FAMILIES, OF_WORKERS, Family
from pgbeat.monitoring.schedule_health import MEANINGS
from pgbeat.schedules.files.fields import FIELDS, FileField
from pgbeat.schedules.files.job_policies import KEYS
from pgbeat.schedules.files.nouns.lanes import LANES
from pgbeat.schedules.files.nouns.webhooks import webhooks_in
from pgbeat.web import create_app
from pgbeat.web.reference import (
    Model,
    Operation,
    OperationResponse,
    Reference,
    ReferenceField,
    Words,
)
from pgbeat.webhooks.events import EVENTS

_MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.M)
_TABLES = Path(__file__).with_name("tables.yml")
_MIGRATIONS = Path(inspect.getfile(migrations)).parent / "versions"
_SUBMIT = re.compile(r"FUNCTION (pgbeat\.submit\(.*?^\) RETURNS uuid$)", re.M | re.S)
_DECISIONS = Path(__file__).parent.parent / "decisions"
_CHART = Path(__file__).parents[2] / "deploy" / "kubernetes"
_PACKAGES = Path(__file__).with_name("decisions.yml")


def on_startup(**_: Any) -> None:
    """Leaves the commands of `pgbeat schedules` to their short forms: each is listed once."""
    schedules_command.table = {}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces each mark of a page by the part that it names."""
    return _MARK.sub(lambda mark: PARTS[mark[1]](), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Leaves out click's mark for "no default", which mkdocs-click takes for a default."""
    return html.replace("<code>Sentinel.UNSET</code>", "")


# -- endpoints -------------------------------------------------------------------------------------


def endpoints() -> str:
    """Returns all operations of the REST API, and the models of their bodies."""
    app = create_app(Celery("docs", broker="pgbeat+postgresql://localhost/docs"))
    reference = Reference(app.openapi())
    lines: list[str] = []
    for section in reference.sections:
        lines += [f"## {section.name.capitalize()}", "", section.note, ""]
        for operation in section.operations:
            lines += _operation(operation)
    lines += ["## Models", ""]
    for model in reference.models.values():
        lines += _model(model)
    return "\n".join(lines)


def _operation(operation: Operation) -> Iterator[str]:
    yield f"### {operation.method} {operation.path} {{ #{operation.key} }}"
    yield ""
    yield f"**{operation.summary}.** For {operation.whose}."
    yield ""
    yield operation.note
    yield ""
    if operation.parameters:
        yield from _fields("parameter", operation.parameters)
    if operation.body:
        yield f"Body: {_kind(operation.body)}{'' if operation.body_is_required else ' (optional)'}."
        yield ""
    yield from _answers(operation)


def _answers(operation: Operation) -> Iterator[str]:
    said = [f"`{answer.status}` {_answer(answer)}".strip() for answer in operation.answers]
    problems = ", ".join(f"`{problem.status}`" for problem in operation.problems)
    yield "Answers: " + "; ".join([*said, *([f"problems {problems}"] if problems else [])]) + "."
    yield ""


def _answer(answer: OperationResponse) -> str:
    kind = _kind(answer.kind) or (f"`{answer.media_type}`" if answer.media_type else "")
    return " ".join(part for part in (kind, answer.note.rstrip(".")) if part)


def _model(model: Model) -> Iterator[str]:
    yield f"### {model.name} {{ #model-{model.name} }}"
    yield ""
    yield model.note
    yield ""
    if model.fields:
        yield from _fields("field", model.fields)


def _fields(noun: str, fields: list[ReferenceField]) -> Iterator[str]:
    yield f"| {noun} | type | meaning |"
    yield "|---|---|---|"
    for field in fields:
        said = [field.place] if field.place else []
        said += ["required"] if field.is_required else []
        said += [f"default `{_cell(field.default)}`"] if field.default else []
        note = " ".join([_cell(field.note), f"({', '.join(said)})" if said else ""]).strip()
        yield f"| `{field.name}` | {_kind(field.kind)} | {note} |"
    yield ""


def _kind(words: Words) -> str:
    return "".join(f"[{text}](#model-{model})" if model else _cell(text) for text, model in words)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# -- tables ----------------------------------------------------------------------------------------


def database_tables() -> str:
    """Returns all tables of the schema, with what `tables.yml` says of them."""
    notes = yaml.safe_load(_TABLES.read_text())
    lines: list[str] = []
    for table in sorted(tables.metadata.tables.values(), key=lambda table: table.name):
        lines += _table(table, notes[table.name])
    return "\n".join(lines)


def _table(table: Table, notes: dict[str, Any]) -> Iterator[str]:
    yield f"## {table.name}"
    yield ""
    yield notes["about"]
    yield ""
    yield "| column | type | default | meaning |"
    yield "|---|---|---|---|"
    for column in table.columns:
        note = _cell(str((notes.get("columns") or {}).get(column.name, "")))
        yield f"| `{column.name}` | {_type(column)} | {_default(column)} | {note} |"
    yield ""
    if keys := ", ".join(f"`{column.name}`" for column in table.primary_key):
        yield f"Primary key: {keys}."
        yield ""


def _type(column: Column[Any]) -> str:
    name = column.type.compile(dialect=postgresql.dialect()).lower()
    name = name.replace("timestamp with time zone", "timestamptz")
    return name if column.nullable else f"{name}, not null"


def _default(column: Column[Any]) -> str:
    if column.identity is not None:
        return "identity"
    default: Any = getattr(column.server_default, "arg", None)
    return "" if default is None else f"`{_cell(str(default).partition('::')[0])}`"


# -- settings, and options of the transport --------------------------------------------------------


def settings() -> str:
    """Returns all settings with their defaults, and what their comments say."""
    return _commented("setting", Settings(make_url("postgresql://")), "pgbeat_")


def transport_options() -> str:
    """Returns all options of the transport with their defaults, and what their comments say."""
    return _commented("option", Options())


def _commented(noun: str, defaults: Any, prefix: str = "") -> str:
    notes = _comments(type(defaults))
    rows = [
        f"| `{prefix}{each.name}` | {_shown(getattr(defaults, each.name))} | {notes[each.name]} |"
        for each in fields(defaults)
    ]
    return "\n".join([f"| {noun} | default | meaning |", "|---|---|---|", *rows])


def _comments(kind: type) -> dict[str, str]:
    """Returns the comments `#: …` above the fields of a class."""
    source = inspect.getsource(kind)
    lines = source.splitlines()
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            first = node.lineno - 1
            while lines[first - 1].strip().startswith("#:"):
                first -= 1
            found[node.target.id] = _cell(
                " ".join(line.strip(" #:") for line in lines[first : node.lineno - 1])
            )
    return found


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, int | float):
        return f"{default:.15g}"
    if isinstance(default, URL):  # the one that was given for `url`
        return ""
    if isinstance(default, tuple):
        default = ", ".join(default)
    return f"`{default}`" if default else "none"


# -- fields of schedules and their jobs ------------------------------------------------------------


def schedule_fields() -> str:
    """Returns what people write about a schedule, with the defaults."""
    return _file_fields(FIELDS)


def lane_fields() -> str:
    """Returns what a file may say of a lane."""
    return _file_fields(LANES.fields)


def webhook_fields() -> str:
    """Returns what a file may say of a webhook."""
    return _file_fields(webhooks_in({}, private=False).fields)


def _file_fields(fields: Mapping[str, FileField] | None) -> str:
    rows = [
        f"| `{name}` | {_plain(field.plain(field.default))} | {_cell(field.about)} |"
        for name, field in (fields or {}).items()
    ]
    return "\n".join(["| field | default | meaning |", "|---|---|---|", *rows])


def job_policy_keys() -> str:
    """Returns the keys of a job policy."""
    rows = [f"| `{name}` | {_cell(about)} |" for name, (about, _) in KEYS.items()]
    return "\n".join(["| key | meaning |", "|---|---|", *rows])


def _plain(default: Any) -> str:
    if default is None:
        return ""
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


# -- the function in SQL ---------------------------------------------------------------------------


def submit_arguments() -> str:
    """Returns the arguments of `pgbeat.submit` in SQL, as the newest migration with it has them."""
    found = ""
    for file in sorted(_MIGRATIONS.rglob("*.sql")):
        function = _SUBMIT.search(file.read_text())
        found = function[1] if function else found
    return f"```sql\n{found}\n```"


# -- words of schedules and jobs -------------------------------------------------------------------


def health_codes() -> str:
    """Returns what a schedule's health may be."""
    rows = [f"| `{code}` | {_cell(about)} |" for code, about in MEANINGS.items()]
    return "\n".join(["| health | meaning |", "|---|---|", *rows])


def search_terms() -> str:
    """Returns the terms of queries for jobs."""
    rows = [f"| {_codes(examples)} | {_cell(about)} |" for examples, about in TERMS]
    return "\n".join(["| term | finds jobs |", "|---|---|", *rows])


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# -- events ----------------------------------------------------------------------------------------


def webhook_events() -> str:
    """Returns the events of webhooks, with when each is sent and what it has."""
    rows = [
        f"| `{name}` | {_cell(when)} | {_cell(data)} |" for name, (when, data) in EVENTS.items()
    ]
    return "\n".join(["| event | when | `data` |", "|---|---|---|", *rows])


# -- metrics ---------------------------------------------------------------------------------------


def metrics() -> str:
    """Returns all metrics with their labels, and what they mean."""
    rows = [_metric(name, family) for name, family in (FAMILIES | OF_WORKERS).items()]
    return "\n".join(["| metric | labels | meaning |", "|---|---|---|", *rows])


def _metric(name: str, family: Family) -> str:
    suffix = "_total" if family.kind == "counter" else ""
    note = f" ({family.kind})" if family.kind == "histogram" else ""
    return f"| `{name}{suffix}` | {_codes(family.labels)} | {_cell(family.about)}{note} |"


# -- decisions -------------------------------------------------------------------------------------


def decisions() -> str:
    """Returns links to all decisions, by the package that each is about."""
    lines: list[str] = []
    for package, numbers in yaml.safe_load(_PACKAGES.read_text()).items():
        lines += [f"## {package}", "", *(_decision(number) for number in numbers), ""]
    return "\n".join(lines)


def _decision(number: int) -> str:
    [page] = _DECISIONS.glob(f"{number:04}-*.md")
    title = page.read_text().partition("\n")[0].removeprefix("# ")
    return f"- [{number:04}]({page.name}) {title}"


#: What pages may ask for.
# -- the Helm chart --------------------------------------------------------------------------------


def chart_values() -> str:
    """Returns the values of the chart, with their defaults and the comments above them."""
    text = (_CHART / "values.yaml").read_text()
    rows = _described(yaml.compose(text), yaml.safe_load(text), text.splitlines(), "")
    return "\n".join(["| value | default | meaning |", "|---|---|---|", *rows])


def _described(node: yaml.MappingNode, value: Any, lines: list[str], prefix: str) -> Iterator[str]:
    for key, inner in node.value:
        name, default = f"{prefix}{key.value}", value[key.value]
        first = last = key.start_mark.line
        while lines[first - 1].lstrip().startswith("#"):
            first -= 1
        if first < last:
            note = _cell(" ".join(line.strip(" #") for line in lines[first:last]))
            shown = f"`{json.dumps(default)}`" if default not in ("", [], {}) else ""
            yield f"| `{name}` | {shown} | {note} |"
        elif isinstance(inner, yaml.MappingNode):
            yield from _described(inner, default, lines, f"{name}.")
        else:
            raise ValueError(f"{name} has no comment in values.yaml")


PARTS: dict[str, Callable[[], str]] = {
    "chart_values": chart_values,
    "decisions": decisions,
    "endpoints": endpoints,
    "health_codes": health_codes,
    "job_policy_keys": job_policy_keys,
    "lane_fields": lane_fields,
    "metrics": metrics,
    "schedule_fields": schedule_fields,
    "search_terms": search_terms,
    "settings": settings,
    "submit_arguments": submit_arguments,
    "tables": database_tables,
    "transport_options": transport_options,
    "webhook_events": webhook_events,
    "webhook_fields": webhook_fields,
}
