"""Parses the filter by labels: `?label=team=billing`."""

from typing import Annotated

from fastapi import Query

from pgbeat.errors import InvalidJob
from pgbeat.jobs.preparing.details import labels_problem

#: Pairs of a label's name and its value; all must match.
LabelFilter = Annotated[
    list[str] | None,
    Query(description="`NAME=VALUE`; may be given several times.", examples=[["team=billing"]]),
]


def labels_of(pairs: list[str] | None) -> dict[str, str]:
    """Parses `NAME=VALUE` pairs. Raises `InvalidJob`."""
    labels = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidJob.of(
                "label", "malformed", f"label {pair!r} has no '='; write for example 'team=billing'"
            )
        labels[name] = value
    problem = labels_problem(labels)
    if problem is not None:
        raise InvalidJob.of("label", "malformed", f"label: the filter {problem}")
    return labels
