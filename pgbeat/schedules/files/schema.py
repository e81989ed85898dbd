"""The JSON Schema of files that declare a set-up, for editors."""

import json
from typing import Any

from pgbeat.schedules.files.documents import SECTIONS, TOP
from pgbeat.schedules.files.fields import FIELDS, FileField
from pgbeat.schedules.files.function_entries import KEYS
from pgbeat.schedules.files.kinds import Text, nullable
from pgbeat.schedules.files.nouns import nouns
from pgbeat.schedules.files.reading import NAMESPACE

#: The dialect that most editors know.
_DIALECT = "http://json-schema.org/draft-07/schema#"
_NAME = {
    "type": "string",
    "minLength": 1,
    "maxLength": 200,
    "pattern": "^(?!\\.\\.?$)[^\\u0000-\\u0020\\u007f-\\u009f/]"
    "([^\\u0000-\\u001f\\u007f-\\u009f/]*[^\\u0000-\\u0020\\u007f-\\u009f/])?$",
}


def schema() -> str:
    """Returns the schema as text that ends with a newline."""
    return json.dumps(_schema(), indent=2, ensure_ascii=False) + "\n"


def _schema() -> dict[str, Any]:
    top = _top({name: {"$ref": f"#/definitions/{name}"} for name in FIELDS})
    return {
        "$schema": _DIALECT,
        "title": "Schedules of pgbeat",
        **_object({"$schema": {"type": "string"}} | {key: top[key] for key in TOP}),
        "patternProperties": {"^x-": {}},
        "anyOf": [{"required": [section]} for section in SECTIONS],
        "definitions": {
            "schedule": _object({name: {"$ref": f"#/definitions/{name}"} for name in FIELDS}),
            "exclusions": _CALENDAR,
            **{
                noun.name: _object({key: _field(field) for key, field in noun.fields.items()})
                for noun in nouns()
                if noun.fields
            },
            **{name: _field(field) for name, field in FIELDS.items()},
        },
    }


def _top(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the schemas of a file's top keys, given those of a schedule's fields."""
    named = {"name": {**_NAME, "description": "Unique."}}
    functions = {key: _FUNCTION_KEYS.get(key) or fields[key] for key in KEYS if key != "name"}
    schedule = {"$ref": "#/definitions/schedule"}
    return {
        "version": {"description": "The version of this form.", "const": 1},
        "namespace": {
            "description": "Of the apps that share the database, whose schedules these are.",
            "type": ["string", "null"],
            "pattern": f"^{NAMESPACE.pattern}$",
        },
        "defaults": schedule,
        "calendars": {
            "description": "Times that the schedules that name a calendar leave out.",
            **_mapping({"$ref": "#/definitions/exclusions"}),
        },
        "lanes": {
            "description": "Limits on what runs at once.",
            **_mapping({"$ref": "#/definitions/lane"}),
        },
        "templates": {
            "description": "Tasks with arguments and a job policy.",
            **_mapping({"$ref": "#/definitions/template"}),
        },
        "webhooks": {
            "description": "URLs to which events are sent.",
            **_mapping({"$ref": "#/definitions/webhook"}),
        },
        "schedules": {
            "description": "Schedules: a mapping of names to definitions, or a list with names.",
            "anyOf": [
                _mapping(schedule),
                {"type": "array", "items": _object(named | fields, ["name"])},
            ],
        },
        "schedulers": {
            "description": "Functions, by the names in pgbeat_allowed_functions, and how often.",
            "type": "array",
            "items": _object(named | functions, ["name", "function"]),
        },
    }


def _mapping(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "propertyNames": _NAME, "additionalProperties": item}


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    described = {"type": "object", "properties": properties, "additionalProperties": False}
    return described | ({"required": required} if required else {})


def _field(field: FileField) -> dict[str, Any]:
    described = {"description": field.about, **nullable(field.kind.schema())}
    default = field.plain(field.default)
    return described if default is None else {**described, "default": default}


_FUNCTION_KEYS: dict[str, dict[str, Any]] = {
    "trigger": {"description": "How it is said when.", "enum": ["interval", "cron", None]},
    "interval_minutes": {
        "description": "When: every so many minutes.",
        "type": ["number", "null"],
        "exclusiveMinimum": 0,
    },
    "function": {
        "description": "One of those in pgbeat_allowed_functions.",
        **Text("reports.generate_daily").schema(),
    },
    "args": {
        "description": "The function's arguments: by name, or in order.",
        "type": ["object", "array", "null"],
    },
    "retry_on_failure": {
        "description": "False: a job that fails is not tried again.",
        "type": ["boolean", "null"],
    },
    "max_retries": {
        "description": "How often a job that fails is tried again.",
        "type": ["integer", "null"],
        "minimum": 0,
        "maximum": 999,
    },
    "timeout_seconds": {
        "description": "The worker stops the task after so long.",
        "type": ["integer", "null"],
        "minimum": 1,
    },
}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_WINDOW = {"from": {"type": "string"}, "to": {"type": "string"}, "weekdays": _TEXTS}
_DAYS: dict[str, Any] = {
    "dates": {"description": "2026-12-24, 12-25, or from/to.", **_TEXTS},
    "weekdays": {"description": "sat, saturday, or mon-fri.", **_TEXTS},
    "holidays": {
        "description": "By the package holidays.",
        "anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}],
    },
    "windows": {
        "description": "Times of day.",
        "type": "array",
        "items": _object(_WINDOW, ["from", "to"]),
    },
}
_CALENDAR = _object(
    {
        "timezone": {"description": "Its zone; the schedule's by default.", "type": "string"},
        **_DAYS,
        "only": {"description": "These times, and no others.", **_object(_DAYS)},
    }
)
