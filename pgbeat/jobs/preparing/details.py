"""Checks the description, labels and metadata of schedules and jobs.

The database has the same rules (`pgbeat.details_problem`), for rows that are written by SQL.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pgbeat.errors import InvalidJob, Problems
from pgbeat.storable import UNSTORABLE, is_storable

#: Characters of a description, and of a label's value.
LONGEST_DESCRIPTION, LONGEST_VALUE = 2_000, 200
#: Labels of one row, and characters of its metadata as JSON.
MOST_LABELS, LARGEST_METADATA = 32, 16_384
#: Names of labels.
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_./-]{0,61}[A-Za-z0-9])?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Details(NamedTuple):
    """What people write on a schedule or a job, to find it again."""

    description: str | None = None
    labels: Mapping[str, str] = {}
    metadata: Mapping[str, Any] = {}

    def check(self) -> None:
        """Raises `InvalidJob`, with all problems."""
        problems = Problems()
        for field, problem in (
            ("description", description_problem(self.description)),
            ("labels", labels_problem(self.labels)),
            ("metadata", metadata_problem(self.metadata)),
        ):
            if problem is not None:
                problems.add(field, "malformed", f"{field} {problem}")
        problems.raise_if_any(InvalidJob)


def description_problem(value: Any) -> str | None:
    """Returns what is wrong with a description, as a text to follow `description`."""
    if value is None:
        return None
    if not isinstance(value, str):
        return f"must be text, got {value!r}"
    if not value.strip():
        return "is empty; leave it out for none"
    if not is_storable(value):
        return f"holds {UNSTORABLE}"
    if len(value) > LONGEST_DESCRIPTION:
        return f"has {len(value)} characters; it may have {LONGEST_DESCRIPTION}"
    return None


def labels_problem(value: Any) -> str | None:
    """Returns what is wrong with labels, as a text to follow `labels`."""
    if not isinstance(value, Mapping):
        return f'must be a mapping of names to texts such as {{"team": "billing"}}, got {value!r}'
    if len(value) > MOST_LABELS:
        return f"has {len(value)} labels; it may have {MOST_LABELS}"
    for name, text in value.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            return (
                f"has {str(name)[:80]!r}, which is not a label's name; use up to 63 letters, "
                "digits, '_', '.', '/' and '-', with a letter or a digit at each end"
            )
        if not isinstance(text, str):
            return f"has {text!r} for {name!r}; the value must be text"
        if len(text) > LONGEST_VALUE or _CONTROL.search(text):
            return (
                f"has a value for {name!r} that is too long or holds a control character; it may "
                f"have {LONGEST_VALUE} characters"
            )
    return None


def parse_labels(pairs: Iterable[str]) -> dict[str, str]:
    """Parses labels from `NAME=VALUE` pairs. Raises `InvalidJob`."""
    labels: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidJob.of(
                "label", "malformed", f"label {pair!r} has no '='; write for example 'team=billing'"
            )
        if labels.setdefault(name, value) != value:
            raise InvalidJob.of("label", "conflict", f"label {name!r} is there twice")
    problem = labels_problem(labels)
    if problem is not None:
        raise InvalidJob.of("label", "malformed", f"the list of labels {problem}")
    return labels


def metadata_problem(value: Any) -> str | None:
    """Returns what is wrong with metadata, as a text to follow `metadata`."""
    if not isinstance(value, Mapping):
        return f"must be a mapping, got {value!r}"
    try:
        written = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        return f"is not JSON: {error}"
    if not is_storable(value):
        return f"holds {UNSTORABLE}"
    if len(written) > LARGEST_METADATA:
        return f"has {len(written)} characters as JSON; it may have {LARGEST_METADATA}"
    return None
