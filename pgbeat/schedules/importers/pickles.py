"""Reads pickles of other schedulers without loading any code that they name.

Only times, zones, numbers and the like are created; instances of all other classes become a
`Named` that keeps their arguments and state.
"""

import io
import pickle
from datetime import tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from pgbeat.schedules.importers.timetables import Unmovable


class Named:
    """Stands for an instance of a class that is not loaded."""

    path = ""
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> "Named":
        """Keeps its arguments."""
        instance = super().__new__(cls)
        instance.args, instance.state = args, None
        return instance

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        """Ignores the items of a subclass of list."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Ignores the items of a subclass of dict."""


def _attribute(owner: Any, name: str) -> Any:
    """Stands for `getattr`, by which ZoneInfo pickles its constructor."""
    if owner is ZoneInfo and name == "_unpickle":
        return _zone
    raise pickle.UnpicklingError(f"it asks for {name!r} of {shown(owner)}")


def _zone(name: Any = "UTC", *rest: Any) -> Any:
    """Returns the zone of that name, from zoneinfo's pickles or pytz's."""
    return ZoneInfo(str(name))


#: The functions that a pickle may call, by what it calls them.
_MADE: dict[tuple[str, str], Any] = {
    ("builtins", "getattr"): _attribute,
    ("__builtin__", "getattr"): _attribute,
    ("zoneinfo", "ZoneInfo"): ZoneInfo,
    ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),  # bytes in old pickles
    ("pytz", "_p"): _zone,
    ("pytz", "_UTC"): _zone,
}
_PLAIN = {
    "datetime": {"datetime", "date", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "uuid": {"UUID"},
    "collections": {"OrderedDict"},
    "builtins": {"set", "frozenset"},
    "__builtin__": {"set", "frozenset"},
}


class Unpickler(pickle.Unpickler):
    """Creates plain values and `Named`s, and runs nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns the class, or its stand-in."""
        if (module, name) in _MADE:
            return _MADE[module, name]
        if name in _PLAIN.get(module, ()):
            return super().find_class(module, name)
        return type("Named", (Named,), {"path": f"{module}.{name}"})


def loads(pickled: bytes) -> Any:
    """Returns what a pickle holds. A damaged one may raise any exception."""
    return Unpickler(io.BytesIO(pickled)).load()


def zone_name(zone: Any) -> str | None:
    """Returns the name of a zone; `None` if it has none that is known here."""
    key = getattr(zone, "key", None) or str(zone)
    return key if isinstance(zone, str | tzinfo) else None


def refuse_code(value: Any) -> None:
    """Raises `Unmovable` for arguments that hold something of the app's code."""
    if path_of(value):
        raise Unmovable(f"its arguments hold {shown(value)}, which only the app's code can make")
    children = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple | set | frozenset):
        for child in children:
            refuse_code(child)


def path_of(value: Any) -> str:
    """Returns the dotted name of a class that is not loaded; "" for any other value."""
    kind = value if isinstance(value, type) else type(value)
    return kind.path if issubclass(kind, Named) else ""


def shown(value: Any) -> str:
    """Returns a value, or the name of a class that is not loaded, for a sentence."""
    return path_of(value) or repr(value)[:80]
