"""The kind of value of a job policy: `{lane: gpu, max_attempts: 5}`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pgbeat.jobs.policy import policies as job_policies
from pgbeat.schedules.files.kinds import Duration, Json, Kind, Switch, Text, Whole, nullable

_EXAMPLE = {"lane": "gpu", "max_attempts": 5}
_AMOUNTS = {
    "type": "object",
    "additionalProperties": {"type": "number", "exclusiveMinimum": 0},
    "examples": [{"gpu": 1}],
}
_NAMES = {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 200}}
#: What each key means, and the JSON Schema of its value.
KEYS: dict[str, tuple[str, dict[str, Any]]] = {
    "template": (
        "The template that gives what the schedule leaves out.",
        Text("resize", 200).schema(),
    ),
    "lane": (
        "The lane whose slots they need; while it is paused, due times are skipped.",
        Text("gpu", 200).schema(),
    ),
    "priority": (
        "0 to 255, the highest first in the lane; also the message's, unless options has one.",
        Whole(0, 255).schema(),
    ),
    "max_attempts": (
        "Attempts in all, 1 for no retry; by default pgbeat_job_max_attempts.",
        Whole(1, 1000).schema(),
    ),
    "retry_base": (
        "The n-th retry of a job comes after retry_base × 2^(n-1) …",
        Duration("1 minute").schema(),
    ),
    "retry_cap": (
        "… but no later; the defaults are pgbeat_job_retry_base and pgbeat_job_retry_cap.",
        Duration("1 hour").schema(),
    ),
    "tags": ("What policies of lanes count.", _NAMES),
    "resources": ("What one takes of each resource while it runs.", _AMOUNTS),
    "unique": ("One unfinished job with the same task and arguments.", Switch().schema()),
    "unique_key": ("One unfinished job with this key.", Text("import", 200).schema()),
    "unique_for": ("Nor another within this time.", Duration("1 hour").schema()),
    "requires_approval": (
        "They are paused until an administrator approves them.",
        Switch().schema(),
    ),
    "must_start_within": (
        "One that has not started so long after its due time is late …",
        Duration("10 minutes").schema(),
    ),
    "must_end_within": ("… or not ended.", Duration("1 hour").schema()),
}


@dataclass(frozen=True, slots=True)
class Policy(Kind):
    """A job policy. Rows have it in the one form that `JobPolicy.as_json` gives it."""

    def _read(self, value: Any) -> dict[str, Any]:
        policy = Json(dict, _EXAMPLE).read(value)
        return job_policies.parse(policy).as_json()

    def _plain(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the policy with durations in words."""
        policy, mistakes = job_policies.read(value)
        if mistakes:  # it bypassed the checks
            return dict(value)
        spans = {
            name: Duration("").plain(span)
            for name, span in policy._asdict().items()
            if isinstance(span, timedelta)
        }
        return policy.as_json() | spans

    def _schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                name: {"description": about, **nullable(kind)}
                for name, (about, kind) in KEYS.items()
            },
            "additionalProperties": False,
            "examples": [_EXAMPLE],
        }


def canonical(value: Any) -> Any:
    """Returns a row's policy as `Policy.read` does; unchanged if it is invalid."""
    if not isinstance(value, Mapping):
        return value
    policy, mistakes = job_policies.read(value)
    return value if mistakes else policy.as_json()
