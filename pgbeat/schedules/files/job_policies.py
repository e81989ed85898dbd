"""The kind of value that says how a schedule's jobs are made: `{lane: gpu, max_attempts: 5}`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pgbeat.jobs import policies as job_policies
from pgbeat.schedules.files.kinds import Duration, Json, Switch, Text, Whole

_EXAMPLE = {"lane": "gpu", "max_attempts": 5}
_AMOUNTS = {
    "type": "object",
    "additionalProperties": {"type": "number", "exclusiveMinimum": 0},
    "examples": [{"gpu": 1}],
}
_NAMES = {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 200}}
_KEYS: dict[str, tuple[str, dict[str, Any]]] = {
    "template": ("The template that they are made from.", Text("resize", 200).schema()),
    "lane": ("The lane that they wait in.", Text("gpu", 200).schema()),
    "priority": ("The highest goes first.", Whole(0, 255).schema()),
    "max_attempts": ("Attempts in all; 1 for no retry.", Whole(1, 1000).schema()),
    "retry_base": (
        "The n-th retry of a job comes after retry_base × 2^(n-1) …",
        Duration("1 minute").schema(),
    ),
    "retry_cap": ("… but no later.", Duration("1 hour").schema()),
    "tags": ("What lanes may count by.", _NAMES),
    "resources": ("What one takes of each resource while it runs.", _AMOUNTS),
    "unique": ("One unfinished job with the same task and arguments.", Switch().schema()),
    "unique_key": ("One unfinished job with this key.", Text("import", 200).schema()),
    "unique_for": ("Nor another within this time.", Duration("1 hour").schema()),
    "requires_approval": ("They wait until a person approves.", Switch().schema()),
}


@dataclass(frozen=True, slots=True)
class Policy:
    """A job policy: in a row as `job_policies.parse` reads it, the same for the same policy."""

    def read(self, value: Any) -> dict[str, Any]:
        given = Json(dict, _EXAMPLE).read(value)
        return job_policies.parse(given).as_json()

    def plain(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """With lengths of time in words."""
        policy, mistakes = job_policies.read(value)
        if mistakes:  # written past the checks
            return dict(value)
        spans = {
            name: Duration("").plain(span)
            for name, span in policy._asdict().items()
            if isinstance(span, timedelta)
        }
        return policy.as_json() | spans

    def schema(self) -> dict[str, Any]:
        properties = {name: _property(said, kind) for name, (said, kind) in _KEYS.items()}
        return {
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
            "examples": [_EXAMPLE],
        }


def _property(said: str, kind: dict[str, Any]) -> dict[str, Any]:
    """A key's schema; null is as if nothing were said."""
    if "anyOf" in kind:
        kind = kind | {"anyOf": [*kind["anyOf"], {"type": "null"}]}
    else:
        kind = kind | {"type": [kind["type"], "null"]}
    return {"description": said, **kind}


def canonical(value: Any) -> Any:
    """A row's policy as `Policy.read` gives it; as it is where it makes no sense."""
    if not isinstance(value, Mapping):
        return value
    policy, mistakes = job_policies.read(value)
    return value if mistakes else policy.as_json()
