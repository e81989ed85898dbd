"""Lays out tables without lines, for a terminal of some width.

If a table is too wide, its prose goes below each row; then the columns of names get narrower, and
a name that is too long for its column goes below its row, too. Names are never broken.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

#: Stands for a blank at which a line must not be broken.
GLUE = "\N{NO-BREAK SPACE}"
#: Columns between two cells.
_GAP = 2
#: The narrowest column of prose.
_PROSE = 24
#: How much worse it is if the first name of a row leaves its line than if another does.
_LEADING = 3
#: The fewest columns for lines below a row; their deepest indent.
_BELOW, _DEEPEST = 40, 10

Row = Mapping[str, Text]


def glued(words: str) -> Text:
    """Returns words that stay on one line."""
    return Text(words.replace(" ", GLUE))


def wrapped(words: Text, width: int, *, breaks_words: bool = True) -> list[Text]:
    """Returns the lines of a text, broken at blanks.

    A word that is longer than a line breaks after `.`, `_`, `/` or `-`, or anywhere if it
    has no such sign; unless `breaks_words`, it makes a line too long.
    """
    if "\n" not in words.plain and cell_len(words.plain) <= width:
        return [words]
    result: list[Text] = []
    for row in words.split("\n", allow_blank=True):
        cuts, begin = [], 0
        for word in re.finditer("[^ ]+", row.plain):
            is_long = breaks_words and cell_len(word[0]) > width
            while cell_len(row.plain[begin : word.end()]) > width:
                cut = max(begin, word.start())
                if is_long:
                    cut = _sign(row.plain, cut, begin + width) or max(word.start(), begin)
                    cut = begin + width if cut == begin else cut
                if cut == begin:
                    break
                cuts.append(begin := cut)
        lines = row.divide(cuts)
        for part in lines:
            part.rstrip()
        result += lines
    return result


def _sign(plain: str, begin: int, end: int) -> int:
    """Returns the place after the last sign at which a word may be broken; 0 without one."""
    place = max(plain.rfind(sign, begin, end) for sign in "._/-") + 1
    return place if place > begin else 0


def shortened(words: Text, width: int) -> Text:
    """Returns a text that is too long without its middle."""
    if cell_len(words.plain) <= width:
        return words
    head = width // 2
    return Text("…").join([words[:head], words[len(words) - (width - head - 1) :]])


class _Column(NamedTuple):
    """A column, where it begins, and how wide it is."""

    name: str
    start: int
    width: int
    is_number: bool


def lines(
    rows: Sequence[Row],
    width: int,
    *,
    names: Collection[str] = (),
    prose: Collection[str] = (),
    numbers: Collection[str] = (),
) -> Iterator[Text]:
    """Yields the lines of a table: the header, and one or more for each row.

    Only columns of `names` and of `prose` are narrowed. Those of `numbers` are flush right.
    """
    widths = _natural(rows)
    below = _narrow(widths, rows, width, names, prose)
    columns = _columns(widths, numbers)
    yield _joined([(column, Text(column.name, "bold")) for column in columns])
    for row in rows:
        yield from _row(row, columns, below, width, names)


def natural_width(rows: Sequence[Row]) -> int:
    """Returns how many columns a table needs to show everything."""
    return sum(_natural(rows).values()) + _GAP * (len(rows[0]) - 1)


def cut(
    rows: Sequence[Row],
    width: int,
    *,
    names: Mapping[str, int],
    optional: Sequence[str] = (),
    numbers: Collection[str] = (),
) -> list[Text]:
    """Returns the header and one line for each row.

    Where `names` don't have so many columns of the screen each, columns without a value and the
    `optional` ones are left out, the first first. Then names lose their middle.
    """
    widths = _natural(rows)
    least = {name: min(natural, names.get(name, natural)) for name, natural in widths.items()}
    empty = [name for name in widths if not any(row[name] for row in rows)]
    for name in [*empty, *optional]:
        if name in widths and sum(least.values()) + _GAP * (len(least) - 1) > width:
            del widths[name], least[name]
    excess = sum(widths.values()) + _GAP * (len(widths) - 1) - width
    narrowing = [name for name in names if name in widths]
    while excess > 0 and narrowing:
        widest = max(narrowing, key=widths.__getitem__)
        if widths[widest] <= 1:
            break
        widths[widest] -= 1
        excess -= 1
    columns = _columns(widths, numbers)
    return [
        _joined([(column, Text(column.name, "bold")) for column in columns]),
        *(
            _joined([(column, shortened(row[column.name], column.width)) for column in columns])
            for row in rows
        ),
    ]


def _natural(rows: Sequence[Row]) -> dict[str, int]:
    return {name: max([cell_len(name), *(_width(row[name]) for row in rows)]) for name in rows[0]}


def _columns(widths: Mapping[str, int], numbers: Collection[str]) -> list[_Column]:
    columns, start = [], 0
    for name, width in widths.items():
        columns.append(_Column(name, start, width, name in numbers))
        start += width + _GAP
    return columns


def _width(cell: Text) -> int:
    return max(map(cell_len, cell.plain.split("\n")))


def _longest_word(cell: Text) -> int:
    return max(map(cell_len, re.split("[ \n]", cell.plain)))


def _narrow(
    widths: dict[str, int],
    rows: Sequence[Row],
    width: int,
    names: Collection[str],
    prose: Collection[str],
) -> list[str]:
    """Makes columns narrower until the table fits; returns the columns of prose to put below."""
    excess = sum(widths.values()) + _GAP * (len(widths) - 1) - width
    wide = [name for name in widths if name in prose and widths[name] > _PROSE]
    if excess <= sum(widths[name] - _PROSE for name in wide):
        for _ in range(excess):
            widths[max(wide, key=widths.__getitem__)] -= 1
        return []
    excess -= sum(widths.pop(name) + _GAP for name in wide)
    first = list(widths)[:1]
    shrinking = {name: _Lengths(name, rows) for name in widths if name in names}
    while excess > 0:
        steps = [
            (lengths.cost(widths[name], step) * (_LEADING if name in first else 1), name, step)
            for name, lengths in shrinking.items()
            if (step := lengths.below(widths[name])) is not None
        ]
        if not steps:
            break
        _, name, step = min(steps)  # the fewest more lines for what it gains
        excess -= widths[name] - step
        widths[name] = step
    if excess < 0:  # there is room left for a column whose words may break
        wrapping = [name for name, lengths in shrinking.items() if lengths.wrap(widths[name])]
        widths.update({name: widths[name] - excess for name in wrapping[:1]})
    return wide


class _Lengths:
    """The lengths of a column's cells, and what a narrower column costs."""

    def __init__(self, name: str, rows: Sequence[Row]) -> None:
        self._least = max(cell_len(name), 1)
        self._cells = Counter((_width(row[name]), _longest_word(row[name])) for row in rows)
        self._steps = sorted({length for cell in self._cells for length in cell} | {self._least})

    def below(self, width: int) -> int | None:
        """Returns the next shorter length; `None` if the header or all cells are as long."""
        shorter = [step for step in self._steps if self._least <= step < width]
        return shorter[-1] if shorter else None

    def wrap(self, width: int) -> bool:
        """Returns whether a cell is broken at its blanks in a column of that width."""
        return any(word <= width < whole for whole, word in self._cells)

    def cost(self, width: int, narrower: int) -> float:
        """Returns how many lines a narrower column adds for each column of the screen it frees."""
        return (self._lines(narrower) - self._lines(width)) / (width - narrower)

    def _lines(self, width: int) -> int:
        return sum(
            count * (1 if word > width else -(-whole // width) - 1)
            for (whole, word), count in self._cells.items()
        )


def _row(
    row: Row, columns: list[_Column], below: list[str], width: int, names: Collection[str]
) -> Iterator[Text]:
    """Yields the lines of a row, and below them the cells that don't fit."""
    cells: list[tuple[_Column, list[Text]]] = []
    spilled: list[tuple[int, Text]] = []
    for column in columns:
        cell = row[column.name]
        placed = wrapped(cell, column.width, breaks_words=column.name not in names)
        if max(cell_len(part.plain) for part in placed) > column.width:
            if column is columns[0]:  # it leads the row, above it
                yield from _indented(cell, 0, width, is_whole=True)
                placed = []
            elif cell_len(placed[0].plain) > column.width:
                spilled.append((column.start, cell))
                placed = []
            else:
                spilled += [(column.start, part) for part in placed[1:]]
                placed = placed[:1]
        cells.append((column, placed))
    for number in range(max(len(parts) for _, parts in cells)):
        yield _joined(
            [(column, parts[number] if number < len(parts) else Text()) for column, parts in cells]
        )
    for start, cell in spilled:
        indent = min(start, max(width - _width(cell), _GAP))
        yield from _indented(cell, indent, width, is_whole=True)
    indent = min([_DEEPEST, *(column.start for column in columns[1:2])])
    for name in below:
        if row[name]:
            label = Text(f"{name}: ", "dim") if len(below) > 1 and name else Text()
            yield from _indented(label + row[name], indent, width, is_whole=False)


def _indented(cell: Text, indent: int, width: int, *, is_whole: bool) -> Iterator[Text]:
    """Yields the lines of a cell that has them for itself."""
    room = max(width - indent, _BELOW)
    for part in wrapped(cell, room, breaks_words=not is_whole):
        text = Text(" " * indent, no_wrap=True, overflow="ignore")
        yield text.append_text(shortened(part, room) if is_whole else part)


def _joined(cells: list[tuple[_Column, Text]]) -> Text:
    """Returns a line of cells, without blanks at its end."""
    text = Text(no_wrap=True, overflow="ignore")
    for column, cell in cells:
        if not cell:
            continue
        room = column.width - cell_len(cell.plain) if column.is_number else 0
        text.append(" " * (column.start + room - cell_len(text.plain))).append_text(cell)
    return text
