"""Reads and checks files that declare schedules; every mistake has its line."""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from pgbeat.errors import ConfigError, InvalidInput, InvalidSchedule, Problem
from pgbeat.jobs.policy.policies import JobPolicy
from pgbeat.names import name_problem
from pgbeat.schedules import upstreams
from pgbeat.schedules.files import json_documents
from pgbeat.schedules.files.definitions import (
    Definition,
    Place,
    circles,
    circular,
    misfit,
    problems,
    timetables,
    too_many,
    unknown,
)
from pgbeat.schedules.files.documents import (
    SECTIONS,
    TOP,
    DocumentNode,
    MappingItem,
    Mistake,
    Notes,
    Unreadable,
)
from pgbeat.schedules.files.fields import FIELDS, FileField
from pgbeat.schedules.files.function_entries import WORDS, FunctionEntry, rest
from pgbeat.schedules.files.kinds import shown
from pgbeat.schedules.files.nouns import nouns as all_nouns
from pgbeat.schedules.files.nouns.noun import FileNoun, FileSection
from pgbeat.schedules.model import TIMETABLES
from pgbeat.suggest import did_you_mean

T = TypeVar("T")
#: Returns further mistakes of a definition: each a field, or "", and a sentence.
Check = Callable[["Definition"], Iterable[tuple[str, str]]]


class InvalidFile(InvalidSchedule):
    """A file that declares schedules has mistakes; the message lists them with their places."""

    def __init__(self, label: str, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = sorted(set(mistakes))
        count = len(self.mistakes)
        lines = [f"{label}:{line}:{column}: {message}" for line, column, message in self.mistakes]
        super().__init__(
            f"{label} has {count} mistake{'s' * (count != 1)}; nothing is written:\n  "
            + "\n  ".join(lines)
        )


@dataclass(frozen=True, slots=True)
class File:
    """What a file declares, as far as it has no mistakes: a field with one has its default."""

    label: str
    #: `None` for that of the app.
    namespace: str | None
    definitions: dict[str, Definition]
    #: What it declares beside schedules, by the key at its top; only what it has a section for.
    sections: dict[str, FileSection] = dataclasses.field(default_factory=dict)
    #: Whether it declares schedules; else those that there are stay.
    has_schedules: bool = True
    mistakes: list[Mistake] = dataclasses.field(default_factory=list)
    #: The names with mistakes.
    unfit: Collection[str] = ()

    def require_valid(self, also: Iterable[Mistake] = ()) -> None:
        """Raises `InvalidFile`, which lists all its mistakes and further ones, if there are any."""
        if mistakes := [*self.mistakes, *also]:
            raise InvalidFile(self.label, mistakes)


def read(
    text: str,
    label: str,
    *,
    is_json: bool = False,
    functions: Mapping[str, str] | None = None,
    nouns: Collection[FileNoun] | None = None,
    check: Check = lambda definition: (),
) -> File:
    """Returns the file of a text, with its mistakes. `label` names it in messages.

    `functions` are the tasks by the names that `schedulers:` may use; `nouns` know the sections
    beside schedules; `check` finds mistakes that only the caller knows. Raises `InvalidFile` for a
    text that is not YAML or JSON.
    """
    notes = Notes()
    tree = _tree(_parser(is_json), text, label, notes)
    file = _Reader(notes, functions or {}, nouns or all_nouns()).file(tree, label)
    others = (section.definitions for section in file.sections.values())
    for definition in chain(file.definitions.values(), *map(dict.values, others)):
        for field, sentence in check(definition):
            # An unreadable value was noted already; its stand-in says nothing.
            unfit = notes.unfit[definition.label]
            if field not in (unfit if definition.noun else unfit | notes.unfit["defaults"]):
                notes.mistakes.append(definition.mistake(field, sentence))
    unfit = {name for name, fields in notes.unfit.items() if fields}
    return dataclasses.replace(file, mistakes=notes.mistakes, unfit=unfit)


def plain_documents(text: str, label: str, *, is_json: bool = False) -> list[Any]:
    """Returns the values of all documents of a text. Raises `InvalidFile`."""
    notes = Notes()
    if is_json:
        trees = [_tree(json_documents.parse, text, label, notes)]
    else:
        trees = _tree(_yaml().parse_all, text, label, notes)
    if notes.mistakes:
        raise InvalidFile(label, notes.mistakes)
    return [tree.plain() for tree in trees]


def _tree(parse: Callable[[str, Notes], T], text: str, label: str, notes: Notes) -> T:
    try:
        return parse(text.removeprefix("\ufeff"), notes)
    except Unreadable as error:
        raise InvalidFile(label, [error.args[0]]) from None


def _parser(is_json: bool) -> Callable[[str, Notes], DocumentNode]:
    return json_documents.parse if is_json else _yaml().parse


def _yaml() -> Any:
    """Returns the module that parses YAML. Raises `ConfigError` without PyYAML."""
    try:
        from pgbeat.schedules.files import yaml_documents
    except ImportError:
        raise ConfigError(
            "YAML needs PyYAML, which is not installed; `pip install 'pgbeat[yaml]'`, or use JSON"
        ) from None
    return yaml_documents


NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,63}", re.ASCII)
_FORMS = {
    "schedules": "a mapping of names to definitions, or a list of definitions ({} for none)",
    "schedulers": "a list of definitions ([] for none)",
}
_MAPPING = "a mapping of names to definitions ({} for none)"


class _Reader:
    """Reads the definitions of a tree, and notes mistakes."""

    def __init__(
        self, notes: Notes, functions: Mapping[str, str], nouns: Collection[FileNoun]
    ) -> None:
        self._notes, self._functions, self._nouns = notes, functions, nouns
        self._defaults: dict[str, Any] = {}
        self._default_places: dict[str, Place] = {}
        self._definitions: dict[str, Definition] = {}

    def file(self, tree: DocumentNode, label: str) -> File:
        """Returns the whole file."""
        if not isinstance(tree.value, dict):
            what = "it is empty" if tree.value is None else "it is no mapping"
            self._notes.at(tree, f"{what}; write `schedules:`, and beneath it names of schedules")
            return File(label, None, {})
        top = {name: entry.node for name, entry in tree.value.items()}
        for name, entry in tree.value.items():
            if name not in TOP and not name.startswith(("x-", "$")):
                hint = did_you_mean(name, TOP) or f"there are {', '.join(TOP)}"
                self._notes.at(entry.key, f"a file has no {name!r} at its top; {hint}")
        if not {*SECTIONS} & set(top):
            self._notes.at(tree, "it has no schedules; write `schedules: {}` for none")
        version = top.get("version", DocumentNode(1, 1, 1))
        if version.value != 1 or version.value is True:
            version_shown = shown(version.plain())
            self._notes.at(version, f"version is {version_shown}; this pgbeat reads version 1")
        self._read_defaults(top.get("defaults", DocumentNode({}, 1, 1)))
        for name, node, key in self._named(top, "schedules"):
            self._define(name, key, *self._fields(name, node, is_item=_is_item(node, key)))
        for name, node, key in self._named(top, "schedulers"):
            self._read_function(name, node, key)
        after = {name: upstreams(item.values["after"]) for name, item in self._definitions.items()}
        for circle in circles(after):
            self._notes.mistakes.append(circular(self._definitions, circle))
        sections = {noun.section: self._section(top, noun) for noun in self._nouns}
        return File(
            label,
            self._namespace(top),
            self._definitions,
            {name: section for name, section in sections.items() if name in top},
            bool({"schedules", "schedulers"} & set(top)),
        )

    def _namespace(self, top: dict[str, DocumentNode]) -> str | None:
        node = top.get("namespace", DocumentNode(None, 1, 1))
        if isinstance(node.value, str) and NAMESPACE.fullmatch(node.value):
            return node.value
        if node.value is not None:
            self._notes.at(
                node,
                f"namespace is {shown(node.plain())}, which is invalid; use up to 63 letters, "
                "digits, '_', '.' and '-'",
            )
        return None

    def _section(self, top: dict[str, DocumentNode], noun: FileNoun) -> FileSection:
        section = FileSection(noun)
        for name, node, key in self._named(top, noun.section):
            label = f"{noun.name} {name!r}"
            given, places = self._fields(label, node, fields=noun.fields)
            values: dict[str, Any] = {}
            try:
                # A mistake in one field may make others look wrong.
                values = {} if self._notes.unfit[label] else noun.check(name, given)
            except InvalidInput as error:
                for problem in error.problems:
                    self._notes.at(_within(node, key, problem), problem.message, label)
            if self._notes.unfit[label]:
                section.unfit.add(name)
            else:
                place = (key.line, key.column)
                section.definitions[name] = Definition(name, values, place, places, noun=noun.name)
        return section

    # -- names ---------------------------------------------------------------------------------

    def _named(
        self, top: dict[str, DocumentNode], section: str
    ) -> Iterator[tuple[str, DocumentNode, DocumentNode]]:
        """Yields the name, definition and name's node of each item of a section.

        A section is a mapping or a list.
        """
        node = top.get(section)
        if node is None:
            return
        if isinstance(node.value, dict) and section != "schedulers":
            items = [(name, entry.node, entry.key) for name, entry in node.value.items()]
        elif isinstance(node.value, list) and section in _FORMS:
            items = list(self._items(node.value))
        else:
            form = _FORMS.get(section, _MAPPING)
            self._notes.at(node, f"{section} is {shown(node.plain())}; it is {form}")
            return
        for name, definition, key in items:
            problem = name_problem(name)
            if problem:
                self._notes.at(key, f"{shown(name)}: {problem}")
            elif not isinstance(definition.value, dict):
                what = shown(definition.plain())
                self._notes.at(definition, f"it is {what}, which is no mapping", name)
            elif section in _FORMS and name in self._definitions:
                line = self._definitions[name].place[0]
                self._notes.at(key, f"the name {name!r} is there twice, first in line {line}")
            else:
                yield name, definition, key

    def _items(self, nodes: list[DocumentNode]) -> Iterator[tuple[str, DocumentNode, DocumentNode]]:
        for node in nodes:
            if not isinstance(node.value, dict):
                self._notes.at(node, f"it is {shown(node.plain())}, which is no definition")
            elif "name" not in node.value:
                self._notes.at(node, "it has no name")
            else:
                name = node.value["name"].node
                if isinstance(name.value, str):
                    yield name.value, node, name
                else:
                    self._notes.at(name, f"the name {shown(name.plain())} is no text; quote it")

    # -- definitions ---------------------------------------------------------------------------

    def _read_defaults(self, node: DocumentNode) -> None:
        if not isinstance(node.value, dict):
            self._notes.at(node, f"defaults is {shown(node.plain())}, which is no mapping")
            return
        self._defaults, self._default_places = self._fields("defaults", node)
        chosen = timetables(self._defaults)
        if len(chosen) > 1:
            place = self._default_places[chosen[1]]
            self._notes.mistakes.append(Mistake(*place, f"defaults: {too_many(chosen)}"))

    def _fields(
        self,
        name: str,
        node: DocumentNode,
        *,
        is_item: bool = False,
        fields: Mapping[str, FileField] | None = FIELDS,
    ) -> tuple[dict[str, Any], dict[str, Place]]:
        """Returns the values of a mapping, as a row has them, and their places."""
        values: dict[str, Any] = {}
        places: dict[str, Place] = {}
        if fields is None:
            return node.plain(), places
        for key, entry in node.value.items():
            if key in fields:
                places[key] = (entry.node.line, entry.node.column)
                self._read_field(name, fields[key], entry, values)
            elif not (is_item and key == "name"):
                self._notes.at(entry.key, unknown(key, fields), name)
        return values, places

    def _read_field(
        self, name: str, field: FileField, entry: MappingItem, values: dict[str, Any]
    ) -> None:
        plain, key = entry.node.plain(), field.name
        # An explicit null overrides the file's defaults.
        values[key] = field.default
        if plain is None:
            return
        try:
            values[key] = field.kind.read(plain)
        except InvalidInput as error:
            for problem in error.problems:
                at = _part(entry.node, problem.field)
                self._notes.at(at, f"{key}: {problem.message}", name, key)
            return
        except ValueError as error:
            self._notes.at(entry.node, f"{key} {error}", name, key)
            return
        message = misfit(key, values[key]) if field is FIELDS.get(key) else None
        if message:
            self._notes.at(entry.node, message, name, key)
            values[key] = field.default

    def _read_function(self, name: str, node: DocumentNode, key: DocumentNode) -> None:
        """Reads an entry of `schedulers:`."""
        values, places = self._fields(name, rest(node))
        options = values.get("options", self._defaults.get("options", {}))
        entry = FunctionEntry(name, key, node, self._notes)
        job = values.get("job_policy", self._defaults.get("job_policy", {}))
        for field, value, where in entry.values(self._functions, options, job):
            values[field] = value
            places[field] = (where.line, where.column)
        self._define(name, key, values, places, WORDS)

    def _define(
        self,
        name: str,
        key: DocumentNode,
        fields: dict[str, Any],
        places: dict[str, Place],
        words: Mapping[str, str] | None = None,
    ) -> None:
        """Adds a definition; fields that are not given have the file's default or the table's."""
        unfit = self._notes.unfit[name] | self._notes.unfit["defaults"]
        defaults = self._defaults
        if timetables(fields) or unfit & {*TIMETABLES} & {*places}:
            defaults = {
                field: value for field, value in defaults.items() if field not in TIMETABLES
            }
        values = {field.name: field.default for field in FIELDS.values()} | defaults | fields
        place = (key.line, key.column)
        definition = Definition(name, values, place, places, self._default_places, words or {})
        self._definitions[name] = definition
        for field, sentence in problems(definition, unfit):
            self._notes.mistakes.append(definition.mistake(field, sentence))


def _part(node: DocumentNode, key: str) -> DocumentNode:
    """Returns the node of a known key's value, or of an unknown key."""
    entry: MappingItem | None = node.value.get(key) if isinstance(node.value, dict) else None
    if entry is None:
        return node
    return entry.node if key in JobPolicy._fields else entry.key


def _is_item(node: DocumentNode, key: DocumentNode) -> bool:
    """Returns whether a definition contains its own name."""
    return "name" in node.value and node.value["name"].node is key


def _within(node: DocumentNode, key: DocumentNode, problem: Problem) -> DocumentNode:
    """Returns the node at the path of a calendar's problem, or the last one on the way there."""
    nearest, value = key, node.value
    for part in re.findall(r"[^.\[\]]+", problem.field):
        if isinstance(value, dict) and part in value:
            is_unknown = problem.code == "unknown_field" and problem.field.endswith(part)
            nearest = value[part].key if is_unknown else value[part].node
            value = value[part].node.value
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            nearest = value[int(part)]
            value = nearest.value
        else:
            break
    return nearest
