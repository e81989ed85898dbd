"""Reads the value of each setting, from Python or as text. Raises `ValueError`."""

import json
import re
from collections.abc import Mapping
from typing import Any

from pgbeat.config.urls import postgres_url


def _number(lowest: float, *, highest: float = 2**63 - 1, whole: bool = False) -> Any:
    def read(value: Any) -> float | int:
        if isinstance(value, bool):
            raise ValueError(f"{value!r} is not a number")
        try:
            number = int(value) if whole else float(value)
            if whole and isinstance(value, float) and number != value:
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            kind = "a whole number" if whole else "a number"
            raise ValueError(f"{value!r} is not {kind}") from None
        if not lowest <= number <= highest:
            raise ValueError(f"{number} is out of range; at least {lowest:g}, at most {highest:g}")
        return number

    return read


def _matching(pattern: str, wanted: str) -> Any:
    def read(value: Any) -> str:
        if not re.fullmatch(pattern, str(value)):
            raise ValueError(f"{value!r} is not {wanted}")
        return str(value)

    return read


def _one_of(*words: str) -> Any:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(f"{value!r} is not one of {', '.join(map(repr, words))}")
        return str(value)

    return read


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in {"1", "true", "yes", "on", "0", "false", "no", "off"}:
        return str(value).lower() in {"1", "true", "yes", "on"}
    raise ValueError(f"{value!r} is neither true nor false")


def _globs(value: Any) -> tuple[str, ...]:
    """Returns globs of task names, given as a list or with commas between them."""
    found = value.split(",") if isinstance(value, str) else value
    if isinstance(found, Mapping) or not all(isinstance(each, str) for each in found):
        raise ValueError(f"{value!r} must be a list of task names, such as ['reports.*']")
    return tuple(each.strip() for each in found if each.strip())


#: PyJWT's algorithms that sign by a shared secret, and those that sign by a private key.
SECRET_ALGORITHMS = ("HS256", "HS384", "HS512")
_KEY_ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip


def _algorithms(value: Any) -> tuple[str, ...]:
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


def _functions(value: Any) -> dict[str, str]:
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


_YEAR = 86_400 * 365
_web_url = _matching(r"(https?://[^\s/]+\S*)?", "a URL of the web, such as https://host/path")

#: Reads the value of each setting.
READERS: dict[str, Any] = {
    "url": lambda value: postgres_url(str(value)),
    "lock_key": _number(-(2**63), whole=True),
    "loop_interval": _number(0.05, highest=300),
    "batch_size": _number(1, highest=10_000, whole=True),
    "condition_timeout": _number(0.01, highest=3600),
    "condition_threads": _number(1, highest=256, whole=True),
    "max_retries": _number(0, highest=1_000_000, whole=True),
    "retry_base": _number(0, highest=_YEAR),
    "retry_cap": _number(0, highest=_YEAR),
    "retention_days": _number(0, highest=36_500),
    "retention_count": _number(0, highest=1_000_000, whole=True),
    "audit_days": _number(0, highest=36_500),
    "namespace": _matching(
        r"[A-Za-z0-9_.-]{1,63}", "a namespace: up to 63 letters, digits, '_', '.' and '-'"
    ),
    "app": str,
    "snooze_min": _number(0.01, highest=_YEAR),
    "snooze_max": _number(0.01, highest=_YEAR),
    "allowed_functions": _functions,
    "track": _one_of("launched", "all", "off"),
    "job_max_attempts": _number(1, highest=1000, whole=True),
    "job_retry_base": _number(0, highest=_YEAR),
    "job_retry_cap": _number(0, highest=_YEAR),
    "log_format": _one_of("text", "json"),
    "webhook_private": _flag,
    "web_jwt_key": str,
    "web_jwt_jwks": _web_url,
    "web_jwt_algorithms": _algorithms,
    "web_jwt_issuer": str,
    "web_jwt_audience": str,
    "web_jwt_admin": _matching(
        r"(?s)(\s*[^\s=][^=]*=.*\S.*)?", "a claim and its value, such as 'role=admin'"
    ),
    "web_tasks": _globs,
    "web_direct": _flag,
    "web_url": _web_url,
    "web_flower_url": _web_url,
}
