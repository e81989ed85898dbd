"""What a file must know of a noun: its fields, its rows, and how they are changed."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, null, select

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.names import name_problem
from pgbeat.schedules.files.definitions import Definition
from pgbeat.schedules.files.fields import FileField, same

#: A definition, or a part of one, as a file writes it.
Plain = dict[str, Any]
#: Stands in a plan for a stored value that is not shown, and is another than the file's.
OTHER = "(another value)"


class Stored(NamedTuple):
    """A row, and its definition in the file that wrote it last; `None` if no file did."""

    row: Any
    base: Plain | None


@dataclass(slots=True)
class FileSection:
    """A section of a file."""

    noun: "FileNoun"
    definitions: dict[str, Definition] = field(default_factory=dict)
    #: The names of those with mistakes, which have no definition.
    unfit: set[str] = field(default_factory=set)


class FileNoun(ABC):
    """Knows one noun. `values` are a definition's values by field, all of them."""

    #: The key at the top of a file, and one of these things.
    section: ClassVar[str]
    name: ClassVar[str]
    #: `None` if only the noun's domain knows them.
    fields: ClassVar[Mapping[str, FileField] | None]
    table: ClassVar[Table]
    columns: ClassVar[Sequence[ColumnElement[Any]]]
    row: ClassVar[type[Any]]
    #: Whether rows know that a file made them. Of others, a file adds and changes any, and removes
    #: none.
    is_owned = True

    def rows(self, connection: Connection, namespace: str) -> dict[str, Stored]:
        """Returns the rows of a namespace, by name."""
        base = self.table.c.file_definition if self.is_owned else null()
        query = select(*self.columns, base).where(self.table.c.namespace == namespace)
        query = query.where(*self.which).order_by(self.table.c.name)
        rows = [(self.row(*values), base) for *values, base in connection.execute(query)]
        return {row.name: Stored(row, base) for row, base in rows}

    @property
    def which(self) -> tuple[ColumnElement[bool], ...]:
        """Returns the conditions, in SQL, on rows that a file may declare."""
        return ()

    def defaults(self) -> dict[str, Any]:
        """Returns the values of fields that a file leaves out."""
        return {name: described.default for name, described in (self.fields or {}).items()}

    @abstractmethod
    def check(self, name: str, given: Plain) -> dict[str, Any]:
        """Returns the values of a definition whose `given` fields are each of their kind.

        They are in the form in which `values` returns them. Raises `InvalidInput`.
        """

    @abstractmethod
    def values(self, stored: Stored) -> dict[str, Any]:
        """Returns the values of a row, as an export writes them."""

    def compared(
        self, connection: Connection, stored: Stored, wanted: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Returns the values of a row, to be compared with those that a file wants."""
        return self.values(stored)

    def plain(self, values: Mapping[str, Any]) -> Plain:
        """Returns values as a file writes them, without defaults."""
        return {
            name: described.plain(values[name])
            for name, described in (self.fields or {}).items()
            if not same(values[name], described.default)
        }

    def plain_default(self, field: str) -> Any:
        """Returns a field's default as a file writes it."""
        described = (self.fields or {}).get(field)
        return None if described is None else described.plain(described.default)

    def refusals(self, definition: Definition, stored: Stored | None) -> Iterator[tuple[str, str]]:
        """Yields why a row can't become what a file wants: a field, and a sentence."""
        yield from ()

    def made_by(self, stored: Stored) -> str | None:
        """Returns who made a row, if it says so."""
        return getattr(stored.row, "created_by", None)

    def remark(self, definition: Definition, *, is_new: bool) -> str | None:
        """Returns what people should know of a definition that is applied."""
        return None

    def left_open(self, stored: Stored, changes: Mapping[str, Any] | None) -> str:
        """Returns in words what other programs miss after changes, or the deletion of a row."""
        return ""

    @abstractmethod
    def write(
        self, unit: UnitOfWork, name: str, values: Mapping[str, Any], changed: set[str] | None
    ) -> None:
        """Makes a row (`changed` is `None`), or changes these fields. Raises `InvalidInput`."""

    @abstractmethod
    def remove(self, unit: UnitOfWork, name: str) -> None:
        """Deletes a row. Raises `InvalidInput` if it is in use."""

    def export(self, connection: Connection, namespace: str) -> dict[str, Plain]:
        """Returns the definitions of all rows whose name a file can have, by name."""
        return {
            name: self.plain(self.values(stored))
            for name, stored in self.rows(connection, namespace).items()
            if name_problem(name) is None
        }
