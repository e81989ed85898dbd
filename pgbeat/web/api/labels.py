"""Defines the filter by labels: `?label=team=billing`."""

from typing import Annotated

from fastapi import Query

#: Pairs of a label's name and its value; all must match.
LabelFilter = Annotated[
    list[str] | None,
    Query(description="`NAME=VALUE`; may be given several times.", examples=[["team=billing"]]),
]
