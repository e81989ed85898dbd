"""Reads JSON (RFC 8259) as a tree with places."""

import re
from bisect import bisect_right
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]
from typing import Any

from pgbeat.schedules.files.documents import DocumentNode, Mistake, Notes, Unreadable, mapping


def parse(text: str, notes: Notes) -> DocumentNode:
    """Returns the tree of a JSON document. Notes keys that occur twice. Raises `Unreadable`."""
    try:
        return _Parser(text, notes).document()
    except RecursionError:
        raise Unreadable(Mistake(1, 1, "it is nested too deep")) from None


_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None}
_WORD = re.compile("|".join(_WORDS))


class _Parser:
    """Parses by recursive descent; methods take a position, and return a node and its end."""

    def __init__(self, text: str, notes: Notes) -> None:
        self._text, self._notes = text, notes
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def document(self) -> DocumentNode:
        node, at = self._value(self._skip(0))
        at = self._skip(at)
        if at != len(self._text):
            raise self._unreadable(at, "the document has ended before this")
        return node

    def _value(self, at: int) -> tuple[DocumentNode, int]:
        line, column = self._place(at)
        start = self._text[at : at + 1]
        if start == "{":
            pairs, end = self._items(at, "}", self._pair)
            return mapping(iter(pairs), line, column, self._notes), end
        if start == "[":
            items, end = self._items(at, "]", self._value)
            return DocumentNode(items, line, column, 1 + sum(item.size for item in items)), end
        if start == '"':
            return self._string(at)
        if match := _NUMBER.match(self._text, at):
            try:
                value = float(match[0]) if match[1] or match[2] else int(match[0])
            except ValueError:
                raise self._unreadable(at, "this number is too long") from None
            return DocumentNode(value, line, column), match.end()
        if match := _WORD.match(self._text, at):
            return DocumentNode(_WORDS[match[0]], line, column), match.end()
        raise self._unreadable(at, "a value is expected")

    def _string(self, at: int) -> tuple[DocumentNode, int]:
        if self._text[at : at + 1] != '"':
            raise self._unreadable(at, "a name in double quotes is expected")
        try:
            value, end = scanstring(self._text, at + 1, True)
        except JSONDecodeError as error:
            raise self._unreadable(error.pos, error.msg) from None
        return DocumentNode(value, *self._place(at)), end

    def _pair(self, at: int) -> tuple[tuple[DocumentNode, DocumentNode], int]:
        key, at = self._string(at)
        at = self._skip(at)
        if self._text[at : at + 1] != ":":
            raise self._unreadable(at, "a colon is expected")
        value, at = self._value(self._skip(at + 1))
        return (key, value), at

    def _items(self, at: int, closing: str, read: Any) -> tuple[list[Any], int]:
        items: list[Any] = []
        at = self._skip(at + 1)
        if self._text[at : at + 1] == closing:
            return items, at + 1
        while True:
            item, at = read(at)
            items.append(item)
            at = self._skip(at)
            mark = self._text[at : at + 1]
            if mark == closing:
                return items, at + 1
            if mark != ",":
                raise self._unreadable(at, f"a comma or {closing} is expected")
            at = self._skip(at + 1)

    def _skip(self, at: int) -> int:
        """Returns the position after any white space."""
        match = _SPACE.match(self._text, at)
        return match.end() if match else at

    def _place(self, at: int) -> tuple[int, int]:
        line = bisect_right(self._starts, at)
        return line, at - self._starts[line - 1] + 1

    def _unreadable(self, at: int, problem: str) -> Unreadable:
        return Unreadable(Mistake(*self._place(at), f"this is not JSON: {problem}"))
