"""How the words of a tree are folded in a narrow terminal."""

import pytest
from rich.text import Text

from pgbeat.cli.job_tree import folded


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("shop.add pending 1234", "shop.add pending 1234"),
        ("warehouse.stock.reconcile ok", "warehouse.stock.\nreconcile ok"),
        ("then warehouse.stock.reconcile", "then warehouse.\nstock.reconcile"),
        ("in the end warehouse_of_long_names", "in the end warehouse_of_long_\nnames"),
        ("x\nwarehouse.stock.reconcile", "x\nwarehouse.stock.\nreconcile"),
        ("withoutanysignatall.in it", "withoutanysignatall.\nin it"),
    ],
)
def test_a_long_word_goes_on_after_a_sign(words: str, lines: str) -> None:
    """Rich itself goes on below at blanks."""
    assert folded(Text(words), 20).plain == lines


def test_the_narrowest_terminal_ends_too() -> None:
    assert folded(Text("a.bc d"), 1).plain == "a.\nbc d"


def test_styles_stay_with_their_words() -> None:
    words = folded(Text.assemble(("warehouse.stock.reconcile", "bold"), " ok"), 20)
    assert [words.plain[span.start : span.end] for span in words.spans] == [
        "warehouse.stock.",
        "reconcile",
    ]
