"""Reads values of settings, given in Python or as text. All raise `ValueError`."""

import json
import re
from collections.abc import Mapping
from typing import Any


def number(lowest: float, *, highest: float = 2**63 - 1, whole: bool = False) -> Any:
    """Returns a reader of numbers from `lowest` to `highest`."""

    def read(value: Any) -> float | int:
        if isinstance(value, bool):
            raise ValueError(f"{value!r} is not a number")
        try:
            result = int(value) if whole else float(value)
            if whole and isinstance(value, float) and result != value:
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            kind = "a whole number" if whole else "a number"
            raise ValueError(f"{value!r} is not {kind}") from None
        if not lowest <= result <= highest:
            raise ValueError(f"{result} is out of range; at least {lowest:g}, at most {highest:g}")
        return result

    return read


def matching(pattern: str, wanted: str) -> Any:
    """Returns a reader of texts that match; `wanted` describes them in the message."""

    def read(value: Any) -> str:
        if not re.fullmatch(pattern, str(value)):
            raise ValueError(f"{value!r} is not {wanted}")
        return str(value)

    return read


#: Bytes of the shortest secret, as RFC 7518 has it for HS256.
SHORTEST = 32


def secret(value: Any) -> str:
    """Returns a secret that is long enough. The message doesn't repeat it."""
    text = str(value)
    if text and len(text.encode()) < SHORTEST:
        raise ValueError(f"it must have at least {SHORTEST} bytes")
    return text


def one_of(*words: str) -> Any:
    """Returns a reader of these words."""

    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(f"{value!r} is not one of {', '.join(map(repr, words))}")
        return str(value)

    return read


def flag(value: Any) -> bool:
    """Returns a truth value, also of its usual words."""
    if isinstance(value, bool):
        return value
    if str(value).lower() in {"1", "true", "yes", "on", "0", "false", "no", "off"}:
        return str(value).lower() in {"1", "true", "yes", "on"}
    raise ValueError(f"{value!r} is neither true nor false")


def names(wanted: str) -> Any:
    """Returns a reader of names, given as a list or with commas between them."""

    def read(value: Any) -> tuple[str, ...]:
        given = value.split(",") if isinstance(value, str) else value
        if isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise ValueError(f"{value!r} must be a list of {wanted}")
        return tuple(name.strip() for name in given if name.strip())

    return read


#: Globs of task names, and roles of the database.
globs, roles = names("task names, such as ['reports.*']"), names("roles, such as ['reports']")
WEB_URL = matching(r"(https?://[^\s/]+\S*)?", "a URL of the web, such as https://host/path")
LISTEN = matching(r"(([\w.-]*|\[[\da-fA-F:.]+\]):\d{1,5})?", "HOST:PORT, such as 127.0.0.1:9464")
NAMESPACE = matching(
    r"[A-Za-z0-9_.-]{1,63}", "a namespace: up to 63 letters, digits, '_', '.' and '-'"
)
VERSION = matching(
    r"[A-Za-z0-9_.+-]{0,64}", "a version: up to 64 letters, digits, '_', '.', '+' and '-'"
)
CLAIM = matching(r"(?s)(\s*[^\s=][^=]*=.*\S.*)?", "a claim and its value, such as 'role=admin'")

#: PyJWT's algorithms that sign by a shared secret, and those that sign by a private key.
SECRET_ALGORITHMS = ("HS256", "HS384", "HS512")
_KEY_ALGORITHMS = (
    *(f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512)),
    "EdDSA",
)


def algorithms(value: Any) -> tuple[str, ...]:
    """Returns names, given as a list or with commas between them.

    They must be of one kind: otherwise a public key could be used as if it were a shared secret.
    """
    names = value.split(",") if isinstance(value, str) else value
    names = tuple(str(name).strip() for name in names)
    if names and (set(names) <= set(SECRET_ALGORITHMS) or set(names) <= set(_KEY_ALGORITHMS)):
        return names
    raise ValueError(
        f"{value!r}: write one or several of {', '.join(SECRET_ALGORITHMS)} (a shared secret), or "
        f"of {', '.join(_KEY_ALGORITHMS)} (the issuer's public key)"
    )


def functions(value: Any) -> dict[str, str]:
    """Returns functions and their tasks: a mapping, or a list of tasks that are their own names.

    In the environment, JSON of either, or `function=task,task`.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = [part.strip() for part in value.split(",") if part.strip()]
            value = dict(part.split("=", 1) if "=" in part else (part, part) for part in value)
    if isinstance(value, list | tuple | set | frozenset):
        value = {name: name for name in value}
    if not isinstance(value, Mapping) or not all(
        isinstance(name, str) and name.strip() for pair in value.items() for name in pair
    ):
        raise ValueError(
            f"{value!r} is not a mapping of functions to tasks; write for example "
            "{'reports.daily': 'shop.tasks.daily_report'}, or a list of tasks"
        )
    return {name.strip(): task.strip() for name, task in value.items()}


def argument_names(value: Any) -> tuple[str, ...]:
    """Returns globs of names of arguments; `*` alone may be given as a text."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple | set | frozenset) or not all(
        isinstance(name, str) and name.strip() for name in names
    ):
        raise ValueError(f"{value!r} must be a list of arguments, such as ['card'], or '*' for all")
    return tuple(name.strip() for name in names)


def _from_json(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"{value!r} is not JSON") from None


def redact(value: Any) -> dict[str, tuple[str, ...]]:
    """Returns names of arguments by globs of task names: a mapping, or in the environment JSON."""
    value = _from_json(value)
    if not isinstance(value, Mapping) or not all(isinstance(glob, str) for glob in value):
        raise ValueError(
            f"{value!r} is not a mapping of task names to arguments; write for example "
            "{'billing.*': ['card'], 'users.login': '*'}"
        )
    return {glob.strip(): argument_names(names) for glob, names in value.items()}


def policies(value: Any) -> dict[str, Mapping[str, Any]]:
    """Returns policies by globs of task names: a mapping, or in the environment JSON."""
    value = _from_json(value)
    if not isinstance(value, Mapping) or not all(
        isinstance(glob, str) and isinstance(policy, Mapping) for glob, policy in value.items()
    ):
        raise ValueError(
            f"{value!r} is not a mapping of task names to policies; write for example "
            "{'shop.*': {'lane': 'shop'}}"
        )
    return {glob.strip(): policy for glob, policy in value.items()}
