"""Makes the API's reference, which `/docs` shows, from the OpenAPI document."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Json = Mapping[str, Any]
#: The text of a type, in parts; a part that is a model has its name.
Words = list[tuple[str, str | None]]
_MODELS = "#/components/schemas/"
_METHODS = ("get", "post", "put", "patch", "delete")


class ReferenceField(NamedTuple):
    """A parameter, or a field of a model."""

    name: str
    kind: Words
    is_required: bool
    note: str
    #: As JSON.
    example: str
    default: str
    #: Where a parameter goes: `path`, `query` or `header`.
    place: str = ""


class OperationResponse(NamedTuple):
    """A response of an operation."""

    status: str
    note: str
    kind: Words
    media_type: str
    example: str


class Operation(NamedTuple):
    """A method of a path."""

    key: str
    method: str
    path: str
    summary: str
    note: str
    #: Whom it is for: `anybody`, without a token; `users`; `administrators`.
    whose: str
    parameters: list[ReferenceField]
    body: Words
    body_is_required: bool
    #: A command for a shell.
    command: str
    answers: list[OperationResponse]
    #: The responses of errors.
    problems: list[OperationResponse]

    def has(self, words: Sequence[str]) -> bool:
        """Returns whether its texts contain all words."""
        names = [field.name for field in self.parameters]
        models = [text for text, model in self.body if model]
        texts = (self.method, self.path, self.summary, self.note, *names, *models)
        text = "\n".join(texts).lower()
        return all(word in text for word in words)


class Section(NamedTuple):
    """The operations of a tag."""

    name: str
    note: str
    operations: list[Operation]

    @property
    def slug(self) -> str:
        """Its name in URLs."""
        return self.name.replace(" ", "-")


class Model(NamedTuple):
    """The fields of a body."""

    name: str
    note: str
    fields: list[ReferenceField]
    example: str


class Reference:
    """An OpenAPI document as people read it."""

    def __init__(self, document: Json) -> None:
        self._schemas: Json = document.get("components", {}).get("schemas", {})
        self.title, self.version = document["info"]["title"], document["info"]["version"]
        self.note = str(document["info"].get("description", "")).strip()
        self.sections = list(self._sections(document))
        #: By name.
        self.models = {
            name: self._model(name, self._schemas[name]) for name in sorted(self._schemas)
        }

    def find(self, search: str) -> list[Section]:
        """Returns the operations with all words in their paths, texts or parameters' names."""
        words = search.lower().split()
        sections = []
        for section in self.sections:
            in_name = all(word in section.name for word in words)
            matching = [call for call in section.operations if in_name or call.has(words)]
            if matching:
                sections.append(section._replace(operations=matching))
        return sections

    def models_of(self, operations: Iterable[Operation]) -> list[Model]:
        """Returns the models that operations take and return, with the models inside them."""
        names: set[str] = set()
        named = {
            name
            for call in operations
            for kind in (call.body, *(answer.kind for answer in call.answers + call.problems))
            for name in _named(kind)
        }
        while named:
            names |= named
            fields = [field for name in named for field in self.models[name].fields]
            named = {name for field in fields for name in _named(field.kind)} - names
        return [self.models[name] for name in sorted(names)]

    def _sections(self, document: Json) -> Iterator[Section]:
        by_tag: dict[str, list[Operation]] = {tag["name"]: [] for tag in document.get("tags", ())}
        for path, methods in document["paths"].items():
            for method in _METHODS:
                if method in methods:
                    operation = methods[method]
                    [tag] = operation.get("tags") or ["others"]
                    by_tag.setdefault(tag, []).append(self._operation(method, path, operation))
        notes = {tag["name"]: tag.get("description", "") for tag in document.get("tags", ())}
        for name, operations in by_tag.items():
            if operations:
                yield Section(name, notes.get(name, ""), operations)

    def _operation(self, method: str, path: str, operation: Json) -> Operation:
        parameters = [
            _field(
                parameter["name"],
                parameter.get("schema", {}),
                parameter.get("required", False),
                place=parameter["in"],
                note=parameter.get("description", ""),
            )
            for parameter in operation.get("parameters", ())
        ]
        body = operation.get("requestBody", {})
        media = body.get("content", {}).get("application/json", {}).get("schema")
        whose = _whose(operation.get("security"))
        answers = [self._answer(*answer) for answer in operation["responses"].items()]
        answers.sort(key=lambda answer: answer.status)
        return Operation(
            key=operation["operationId"],
            method=method.upper(),
            path=path,
            summary=operation.get("summary", ""),
            note=operation.get("description", ""),
            whose=whose,
            parameters=parameters,
            body=_kind(media) if media else [],
            body_is_required=bool(body.get("required")),
            command=self._command(method, path, media, is_open=whose == "anybody"),
            answers=[answer for answer in answers if answer.status < "400"],
            problems=[answer for answer in answers if answer.status >= "400"],
        )

    def _answer(self, status: str, answer: Json) -> OperationResponse:
        empty: tuple[str, Json] = ("", {})
        media_type, content = next(iter(answer.get("content", {}).items()), empty)
        example = content.get("example", "")
        kind = _kind(content["schema"]) if content.get("schema") else []
        note = answer.get("description", "")
        note = "" if note == "Successful Response" else note
        text = example if isinstance(example, str) else _json(example)
        return OperationResponse(status, note, kind, media_type, text)

    def _model(self, name: str, schema: Json) -> Model:
        wanted = schema.get("required", ())
        fields = [
            _field(key, field, key in wanted) for key, field in schema.get("properties", {}).items()
        ]
        examples = schema.get("examples")
        example = _json(examples[0]) if examples else ""
        return Model(name, schema.get("description", ""), fields, example)

    def _command(self, method: str, path: str, media: Json | None, *, is_open: bool) -> str:
        lines = [f"curl -X {method.upper()} " if method != "get" else "curl "]
        lines[0] += f'"$PGBEAT{path}"'
        if not is_open:
            lines.append('-H "Authorization: Bearer $TOKEN"')
        if media is not None:
            lines.append('-H "Content-Type: application/json"')
            body = json.dumps(self._example(media), ensure_ascii=False).replace("'", "'\\''")
            lines.append(f"-d '{body}'")
        return " \\\n  ".join(lines)

    def _example(self, schema: Json, depth: int = 0) -> Any:
        """Returns the schema's own example, or one made of its required fields."""
        for key in ("examples", "enum"):
            if schema.get(key):
                return schema[key][0]
        if "$ref" in schema:
            return self._example(self._schemas[_name(schema)], depth)
        for key in ("anyOf", "oneOf", "allOf"):
            if key in schema:
                return self._example(schema[key][0], depth)
        for key in ("default", "const"):
            if key in schema:
                return schema[key]
        if schema.get("type") == "object" and depth < _DEEPEST:
            wanted, known = schema.get("required", ()), schema.get("properties", {})
            return {key: self._example(known[key], depth + 1) for key in wanted if key in known}
        if schema.get("type") == "array":
            items = schema.get("items")
            return [self._example(items, depth + 1)] if items and depth < _DEEPEST else []
        return _VALUES.get(schema.get("format", ""), _VALUES.get(str(schema.get("type"))))


#: How deep an example is nested.
_DEEPEST = 4
_VALUES: Json = {
    "uuid": "3f0c9d2e-6f0b-5a0e-9c1d-2b7a4c1e8f55",
    "date-time": "2026-12-24T09:00:00Z",
    "string": "…",
    "integer": 1,
    "number": 1,
    "boolean": True,
}
_FORMATS = {"uuid": "UUID", "date-time": "time", "binary": "file"}


def _whose(security: Sequence[Mapping[str, Sequence[str]]] | None) -> str:
    if not security:
        return "anybody"
    for scope, whose in (
        ("admin", "administrators"),
        ("viewer", "administrators and viewers"),
        ("metrics", "administrators, viewers, `metrics` tokens"),
    ):
        if all(scope in scopes for way in security for scopes in way.values()):
            return whose
    return "users"


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _name(schema: Json) -> str:
    return str(schema["$ref"]).removeprefix(_MODELS)


def _field(
    name: str, schema: Json, is_required: bool, *, place: str = "", note: str = ""
) -> ReferenceField:
    example, default = [
        "" if value is None else json.dumps(value, ensure_ascii=False)
        for value in (next(iter(schema.get("examples") or ()), None), schema.get("default"))
    ]
    note = note or schema.get("description", "")
    return ReferenceField(name, _kind(schema), is_required, note, example, default, place)


def _named(kind: Words) -> Iterator[str]:
    return (model for _, model in kind if model)


def _kind(schema: Json) -> Words:
    """Returns the type of a value in words."""
    if "$ref" in schema:
        return [(_name(schema), _name(schema))]
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return _joined([_kind(part) for part in schema[key]], " or ")
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        words = [value if isinstance(value, str) else json.dumps(value) for value in values]
        return [(" | ".join(words), None)]
    kind = schema.get("type")
    if kind == "array":
        return [("list of ", None), *_kind(schema.get("items", {}))]
    if kind == "object":
        inner = schema.get("additionalProperties")
        if isinstance(inner, dict) and inner:
            return [("object of ", None), *_kind(inner)]
        return [("object", None)]
    if kind is None:
        return [("anything", None)]
    word = _FORMATS.get(schema.get("format", ""), str(kind))
    return [(word + _limits(schema), None)]


def _joined(parts: list[Words], between: str) -> Words:
    words: Words = []
    for part in parts:
        if part in ([word] for word in words):
            continue
        words += ([(between, None)] if words else []) + part
    return words


def _limits(schema: Json) -> str:
    if schema.get("type") == "string":
        low, high, noun = schema.get("minLength"), schema.get("maxLength"), " characters"
    else:
        low, high, noun = schema.get("minimum"), schema.get("maximum"), ""
    if high is None:
        return "" if low is None else f", {low:,.10g} or more{noun}"
    return f", {f'{low:,.10g} to' if low is not None else 'up to'} {high:,.10g}{noun}"
