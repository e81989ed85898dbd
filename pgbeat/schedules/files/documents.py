"""Trees of values that know their places in a file, and the mistakes found in them."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: The keys at the top of a file.
TOP = (
    "version", "namespace", "defaults", "calendars", "lanes", "templates", "schedules",
    "schedulers", "webhooks",
)  # fmt: skip
#: Those that declare something.
SECTIONS = TOP[3:]
#: How many values a file may have, including those that aliases repeat.
MOST = 5_000_000


class Mistake(NamedTuple):
    """A mistake and its place; line and column count from 1."""

    line: int
    column: int
    message: str


@dataclass(slots=True)
class Notes:
    """Collects the mistakes of a file."""

    mistakes: list[Mistake] = field(default_factory=list)
    #: The fields with mistakes, by the name of their definition.
    unfit: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def at(self, node: "DocumentNode", message: str, name: str = "", key: str = "") -> None:
        """Notes a mistake in the field `key` of the definition of that name."""
        text = f"{name}: {message}" if name else message
        self.mistakes.append(Mistake(node.line, node.column, text))
        self.unfit[name].add(key)


class Unreadable(Exception):
    """The text is not YAML or JSON. `args[0]` is the `Mistake`."""


@dataclass(slots=True, eq=False)
class DocumentNode:
    """A value and its place. `value` is a scalar, a list of nodes, or a dict of `MappingItem`."""

    value: Any
    line: int
    column: int
    #: How many values it contains, including itself.
    size: int = 1

    def plain(self) -> Any:
        """Returns the value without places."""
        if isinstance(self.value, dict):
            return {key: entry.node.plain() for key, entry in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


class MappingItem(NamedTuple):
    """A key's place and the value under it."""

    key: DocumentNode
    node: DocumentNode


def mapping(
    pairs: Iterator[tuple[DocumentNode, DocumentNode]], line: int, column: int, notes: Notes
) -> DocumentNode:
    """Returns a mapping at that place. Notes keys that occur twice, or are not text."""
    entries: dict[str, MappingItem] = {}
    for key, node in pairs:
        if not isinstance(key.value, str):
            notes.at(key, f"the key {_shown(key)} is no text; put it in quotes")
        elif key.value in entries:
            first = entries[key.value].key
            notes.at(key, f"{key.value!r} is there twice, first in line {first.line}")
        else:
            entries[key.value] = MappingItem(key, node)
    return DocumentNode(entries, line, column, 1 + sum(1 + e.node.size for e in entries.values()))


def _shown(key: DocumentNode) -> str:
    if isinstance(key.value, dict | list):
        return "in braces or brackets"
    words = {"None": "null", "True": "true", "False": "false"}
    return words.get(str(key.value), str(key.value))
