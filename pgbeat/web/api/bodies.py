"""The JSON of requests and responses: strict bodies, durations, and what all nouns share."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import reduce
from operator import or_
from types import GenericAlias, UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from pgbeat.errors import InvalidTimetable
from pgbeat.storable import DEEPEST, is_deep
from pgbeat.suggest import did_you_mean
from pgbeat.timetables import parse_duration

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Body(BaseModel):
    """The base of bodies. It refuses unknown fields, and suggests the known one of a like name."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        if isinstance(value, dict):
            unknown = [key for key in value if key not in cls._names()]
            if unknown:
                hints = "; ".join(cls._hint(str(key)[:80]) for key in unknown[:5])
                context = {"said": hints, "field": str(unknown[0])}
                raise PydanticCustomError("unknown_field", "{said}", context)
        return value

    @classmethod
    def _names(cls) -> set[str]:
        names = set(cls.model_fields)
        for field in cls.model_fields.values():
            alias = field.validation_alias
            if isinstance(alias, AliasChoices):
                names |= {choice for choice in alias.choices if isinstance(choice, str)}
            elif isinstance(alias, str):
                names.add(alias)
        return names

    @classmethod
    def _hint(cls, key: str) -> str:
        known = ", ".join(sorted(cls.model_fields))
        hint = did_you_mean(key, cls._names()) or f"there are {known}"
        return f"there is no field {key!r}; {hint}"


def _length(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be seconds or text, not true or false")
    try:
        if isinstance(value, int | float):
            return timedelta(seconds=value)
        if isinstance(value, str):
            return parse_duration(value)
    except OverflowError:
        raise ValueError("must be at most 999,999,999 days") from None
    except InvalidTimetable as error:
        raise ValueError(str(error)) from None
    return value


#: A duration: seconds, or text such as `15 minutes`. Responses have seconds.
Length = Annotated[
    timedelta,
    BeforeValidator(_length),
    PlainSerializer(timedelta.total_seconds, return_type=float, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [{"type": "number"}, {"type": "string", "maxLength": 100}],
            "examples": ["15 minutes", 900],
        },
        mode="validation",
    ),
    Field(examples=["15 minutes"]),
]


def plain(value: T) -> T:
    """Returns the value if it is JSON: Python reads NaN and infinities too. Raises `ValueError`."""
    if is_deep(value):
        raise ValueError(f"must not be nested more than {DEEPEST} deep")
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise ValueError("NaN and infinities are not JSON") from None
    return value


#: A JSON object, and one or a list that is checked by `plain`.
Json = dict[str, Any]
PlainJson = Annotated[Json, AfterValidator(plain)]
PlainList = Annotated[list[Any], AfterValidator(plain)]


def set_fields(body: BaseModel, *names: str) -> Json:
    """Returns those of the fields that the body gives a value other than null."""
    return body.model_dump(include=set(names), exclude_unset=True, exclude_none=True)


def example(*examples: Any) -> ConfigDict:
    """Returns the configuration of a model with these examples."""
    return ConfigDict(json_schema_extra={"examples": list(examples)})


def of_row(row: type, without: Collection[str] = ()) -> Callable[[type[M]], type[M]]:
    """Completes a model, derived from `BaseModel`, by the columns of the row that it shows.

    The model itself has the fields that need a description or another type, and the view's own.
    """
    columns = {name: hint for name, hint in get_type_hints(row).items() if name not in without}

    def completed(model: type[M]) -> type[M]:
        fields: dict[str, Any] = {name: (_sent(hint), ...) for name, hint in columns.items()}
        hints = get_type_hints(model, include_extras=True)
        fields |= {name: (hints[name], field) for name, field in model.model_fields.items()}
        return create_model(  # type: ignore[no-any-return]
            model.__name__,
            __config__=model.model_config,
            __doc__=model.__doc__,
            __module__=model.__module__,
            **fields,
        )

    return completed


def _sent(hint: Any) -> Any:
    """Returns the type in responses of a column's type."""
    origin, inner = get_origin(hint), tuple(map(_sent, get_args(hint)))
    if origin is UnionType:
        return reduce(or_, inner)
    if origin in (Sequence, Mapping):
        return GenericAlias(list if origin is Sequence else dict, inner)
    return Length if hint is timedelta else hint


#: The cursor of the next page.
Next = Annotated[str | None, Field(description="For the next page; null on the last one.")]


class Done(BaseModel):
    """Confirms a change."""

    success: bool = True
    message: str
