"""Bodies: what requests bring, of JSON; a field that is not known says which was meant."""

from datetime import timedelta
from typing import Annotated, Any

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from pgbeat.errors import InvalidTimetable
from pgbeat.suggest import did_you_mean
from pgbeat.timetables import parse_duration


class Body(BaseModel):
    """Base of what requests bring: fields that it doesn't have are refused."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        if isinstance(given, dict):
            unknown = [key for key in given if key not in cls._names()]
            if unknown:
                said = "; ".join(cls._hint(str(key)[:80]) for key in unknown[:5])
                context = {"said": said, "field": str(unknown[0])}
                raise PydanticCustomError("unknown_field", "{said}", context)
        return given

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
        raise ValueError("true and false are no length of time")
    try:
        if isinstance(value, int | float):
            return timedelta(seconds=value)
        if isinstance(value, str):
            return parse_duration(value)
    except OverflowError:
        raise ValueError("that is longer than time itself; at most 999,999,999 days") from None
    except InvalidTimetable as error:
        raise ValueError(str(error)) from None
    return value


def _seconds(value: timedelta) -> float:
    return value.total_seconds()


#: A length of time: seconds, or text such as `15 minutes`. Answers have seconds.
Length = Annotated[
    timedelta,
    BeforeValidator(_length),
    PlainSerializer(_seconds, return_type=float, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [{"type": "number"}, {"type": "string", "maxLength": 100}],
            "examples": ["15 minutes", 900],
        },
        mode="validation",
    ),
    Field(examples=["15 minutes"]),
]
#: A JSON object.
Json = dict[str, Any]
