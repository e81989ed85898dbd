"""Loads statements from `.sql` files, which lie beside the modules that run them.

A file has one statement, or several below lines such as `-- name: claim`. A name in braces there,
such as `{which}`, stands for a part: one that the module gives, else the file's own of that name.
Parts are pgbeat's own SQL; values are bound parameters. Lines of comment are left out.
"""

import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)
_PART = re.compile(r"\{([a-z]\w*)\}")


def load(file: str, name: str = "", /, **parts: str) -> str:
    """Returns the statement of that name in a `.sql` file beside the module that calls.

    Raises `KeyError` if the statement or a part is missing.
    """
    caller = sys._getframe(1).f_code.co_filename
    return _fill(_statements(Path(caller).with_name(file)), name, parts)


def _fill(statements: Mapping[str, str], name: str, parts: Mapping[str, str]) -> str:
    def part(word: re.Match[str]) -> str:
        filled = parts.get(word[1])
        return _fill(statements, word[1], parts) if filled is None else filled

    return _PART.sub(part, statements[name])


@cache
def _statements(path: Path) -> dict[str, str]:
    start, *named = _NAME.split(path.read_text(encoding="utf-8"))
    bodies = {"": start} | dict(zip(named[::2], named[1::2], strict=True))
    return {name: _COMMENT.sub("", body).strip() for name, body in bodies.items()}
