"""Reads YAML as a tree with places, and writes it. Needs PyYAML (the extra `yaml`)."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
)
from yaml.nodes import ScalarNode
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from pgbeat.schedules.files.documents import (
    MOST,
    SECTIONS,
    DocumentNode,
    Mistake,
    Notes,
    Unreadable,
    mapping,
)

_TAG = "tag:yaml.org,2002:"
_DEEPEST = 100
#: The types of plain words in YAML 1.2 ("core schema"), and the first characters of such words. In
#: YAML 1.1, which PyYAML implements, `no` is false, `1:30` is ninety and `2026-01-01` is a date.
CORE = [
    ("null", re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")),
    ("int", re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z"), list("-+0123456789")),
    (
        "float",
        re.compile(
            r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
        ),
        list("-+0123456789."),
    ),
    ("merge", re.compile(r"<<\Z"), ["<"]),
]


class _Resolver(BaseResolver):
    """Resolves plain words by the core schema."""


for _name, _pattern, _first in CORE:
    _Resolver.add_implicit_resolver(_TAG + _name, _pattern, _first)
_resolver: Any = _Resolver()


class _SlowParser(Reader, Scanner, Parser):
    """PyYAML's parser for systems without libyaml; about ten times slower."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)


_Parser: Any = yaml.cyaml.CParser if yaml.__with_libyaml__ else _SlowParser  # type: ignore[attr-defined]


def parse(text: str, notes: Notes) -> DocumentNode:
    """Returns the tree of a YAML document. Notes keys that occur twice, or are not text.

    Raises `Unreadable`, also for a second document.
    """
    return next(iter(parse_all(text, notes, most=1)), DocumentNode(None, 1, 1))


def parse_all(text: str, notes: Notes, most: int | None = None) -> list[DocumentNode]:
    """Returns the trees of several documents as `parse` does that of one."""
    try:
        return list(_Tree(text, notes).documents(most))
    except ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        character = error.character if isinstance(error.character, int) else ord(error.character)
        message = f"the character U+{character:04X} has no place in YAML"
        raise Unreadable(Mistake(line, column, message)) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line, mark.column) if mark is not None else (0, 0)
        problem = ", ".join(part for part in (error.problem, error.context) if part)
        problem += _hint(text.split("\n")[line : line + 1])
        raise Unreadable(Mistake(line + 1, column + 1, f"this is not YAML: {problem}")) from None


def _hint(lines: list[str]) -> str:
    """Returns what is probably wrong with the line that YAML can't parse."""
    line = lines[0].lstrip(" ") if lines else ""
    if line.startswith("\t"):
        return "; indent with spaces, not with tabs"
    if re.search(r"(:|^-) +[*@%`]", line):
        return "; put a value that begins with *, @, % or ` in quotes"
    return ""


class _Tree:
    """Builds the tree from the parser's events: PyYAML's own composer has no limits."""

    def __init__(self, text: str, notes: Notes) -> None:
        self._parser, self._notes = _Parser(text), notes
        #: The nodes of anchors; `None` while a node is being built.
        self._anchors: dict[str, DocumentNode | None] = {}

    def documents(self, most: int | None) -> Iterator[DocumentNode]:
        self._parser.get_event()  # the stream's start
        for count in itertools.count():
            event = self._parser.get_event()
            if isinstance(event, StreamEndEvent):
                return
            if count == most:
                raise _unreadable(event, "a second document starts here; write one file for each")
            self._anchors.clear()
            yield self._node(self._parser.get_event(), 0)
            self._parser.get_event()  # the document's end

    def _node(self, event: Any, depth: int) -> DocumentNode:
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        if isinstance(event, AliasEvent):
            if event.anchor not in self._anchors:
                advice = "put a value that begins with * in quotes"
                raise _unreadable(event, f"there is no anchor &{event.anchor}; {advice}")
            known = self._anchors[event.anchor]
            if known is None:
                raise _unreadable(event, f"*{event.anchor} stands for what it is in")
            return known
        if depth > _DEEPEST:
            raise _unreadable(event, f"it is nested more than {_DEEPEST} deep")
        if event.anchor:
            self._anchors[event.anchor] = None
        node = DocumentNode(None, line, column)
        if isinstance(event, ScalarEvent):
            node.value = self._scalar(event, node)
        elif isinstance(event, MappingStartEvent):
            node = self._mapping(event, node, depth)
        else:
            node = self._sequence(event, node, depth)
        if node.size > MOST:
            raise _unreadable(event, f"it holds more than {MOST} values")
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _sequence(self, event: Any, node: DocumentNode, depth: int) -> DocumentNode:
        self._check_tag(event, node, "seq")
        items = []
        while not isinstance(event := self._parser.get_event(), SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return DocumentNode(items, node.line, node.column, 1 + sum(item.size for item in items))

    def _mapping(self, event: Any, node: DocumentNode, depth: int) -> DocumentNode:
        self._check_tag(event, node, "map")
        pairs, merged = [], []
        while not isinstance(event := self._parser.get_event(), MappingEndEvent):
            is_merge = _tag(event) == "merge"
            key = self._node(event, depth + 1)
            value = self._node(self._parser.get_event(), depth + 1)
            if is_merge:
                merged.append(value)
            else:
                pairs.append((key, value))
        result = mapping(iter(pairs), node.line, node.column, self._notes)
        for one in merged:
            for more in one.value if isinstance(one.value, list) else [one]:
                self._merge(result, more)
        return result

    def _merge(self, into: DocumentNode, more: DocumentNode) -> None:
        """Merges a mapping under `<<`: it fills in the keys that are missing."""
        if not isinstance(more.value, dict):
            self._notes.at(more, "<< takes a mapping, such as *defaults")
            return
        for key, entry in more.value.items():
            into.value.setdefault(key, entry)
        into.size += more.size

    def _check_tag(self, event: Any, node: DocumentNode, tag: str) -> None:
        if not event.implicit and event.tag not in (None, "!", _TAG + tag):
            self._notes.at(node, f"the tag {event.tag!r} means nothing here")

    def _scalar(self, event: Any, node: DocumentNode) -> Any:
        tag = _tag(event)
        if tag not in _SCALARS:
            self._notes.at(node, f"the tag {event.tag!r} means nothing here")
            return None
        try:
            return _SCALARS[tag](event.value)
        except (ValueError, KeyError):
            self._notes.at(node, f"{event.value!r} is no {tag}")
            return None


def _tag(event: Any) -> str | None:
    """Returns the type of a scalar, by its tag or its text; `None` for other events."""
    if not isinstance(event, ScalarEvent):
        return None
    if event.tag is not None and event.tag != "!":
        return str(event.tag).removeprefix(_TAG)
    return str(_resolver.resolve(ScalarNode, event.value, event.implicit)).removeprefix(_TAG)


def _unreadable(event: Any, problem: str) -> Unreadable:
    return Unreadable(Mistake(event.start_mark.line + 1, event.start_mark.column + 1, problem))


def _whole(text: str) -> int:
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text[2:] if base != 10 else text, base)


_SCALARS: dict[str, Any] = {
    "str": str,
    "merge": str,
    "null": lambda text: None,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "int": _whole,
    "float": lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
}


class _Dumper(yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper):  # type: ignore[misc]
    """Writes YAML that means the same in versions 1.1 and 1.2: ambiguous text is quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        """Returns `True`: everything is written out."""
        return True


def _text(dumper: Any, text: str) -> Any:
    style = "|" if "\n" in text.strip("\n") else None
    return dumper.represent_scalar(_TAG + "str", text, style=style)


def _list(dumper: Any, items: list[Any]) -> Any:
    is_short = not any(isinstance(item, list | dict) for item in items)
    return dumper.represent_sequence(_TAG + "seq", items, flow_style=is_short)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _list)
for _name, _pattern, _first in CORE:
    _Dumper.add_implicit_resolver(_TAG + _name, _pattern, _first)


def write(document: dict[str, Any]) -> str:
    """Returns the document as YAML, with a blank line before each definition."""
    written = yaml.dump(
        document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31 - 1
    )
    parts = re.split(r"(?m)^(?=\S)", written)
    return "\n".join(
        re.sub(r"(?m)(?<=.\n)^  (?=[^\s:])", "\n  ", part).replace(":\n\n", ":\n", 1)
        if part.startswith(tuple(f"{section}:" for section in SECTIONS))
        else part
        for part in parts
        if part
    )
