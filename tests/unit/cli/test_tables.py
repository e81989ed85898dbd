"""How tables and long words fit a terminal."""

import pytest
from rich.cells import cell_len
from rich.text import Text

from pgbeat.cli.terminal.tables import GLUE, glued, lines, shortened, wrapped


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("shop.add pending 1234", "shop.add pending|1234"),
        ("warehouse.stock.reconcile ok", "warehouse.stock.|reconcile ok"),
        ("then warehouse.stock.reconcile", "then warehouse.|stock.reconcile"),
        ("in the end warehouse_of_long_names", "in the end|warehouse_of_long_|names"),
        ("x\nwarehouse.stock.reconcile", "x|warehouse.stock.|reconcile"),
        ("withoutanysignatall.in it", "withoutanysignatall.|in it"),
        ("withoutanysignatallinit", "withoutanysignatalli|nit"),
        ("", ""),
    ],
)
def test_a_long_word_goes_on_after_a_sign(words: str, expected: str) -> None:
    assert [line.plain for line in wrapped(Text(words), 20)] == expected.split("|")


def test_the_narrowest_terminal_ends_too() -> None:
    assert "".join(line.plain for line in wrapped(Text("a.bc d \N{CJK UNIFIED IDEOGRAPH-4E2D}"), 1))


def test_styles_stay_with_their_words() -> None:
    found = wrapped(Text.assemble(("warehouse.stock.reconcile", "bold"), " ok"), 20)
    assert [[line.plain[s.start : s.end] for s in line.spans] for line in found] == [
        ["warehouse.stock."],
        ["reconcile"],
    ]


def test_a_name_that_no_line_can_hold_loses_its_middle() -> None:
    assert shortened(Text("abcdefghij"), 10).plain == "abcdefghij"
    assert shortened(Text("abcdefghijk"), 10).plain == "abcde…hijk"


LONG = "warehouse-inventory-reconciliation-eu-west"
CRONS = ["0 2 * * *", "*/15 6-22 * * mon-fri", "0 6 1 jan,apr,jul,oct *", "5,25,45 */2 * * *"]
ERROR = 'ConnectionError: HTTPSConnectionPool(host="prices.example.com", port=443): Max retries'
ROWS = [
    {
        "schedule": Text(name),
        "timetable": glued(cron) + Text(f" ({zone})" if zone else ""),
        "state": Text("active"),
        "runs": Text(str(number)),
        "": Text(ERROR if number % 2 else ""),
    }
    for number, (name, cron, zone) in enumerate(
        [
            ("stock", CRONS[1], "America/Argentina/Buenos_Aires"),
            (LONG, CRONS[3], ""),
            ("nightly", CRONS[0], "Europe/Oslo"),
            ("invoices", CRONS[2], ""),
        ]
    )
]


def drawn(width: int) -> list[str]:
    found = lines(ROWS, width, names={"schedule", "timetable"}, prose={""}, numbers={"runs"})
    return [line.plain.replace(GLUE, " ") for line in found]


@pytest.mark.parametrize("width", range(50, 200, 7))
def test_no_name_is_broken_and_every_line_fits(width: int) -> None:
    found = drawn(width)
    assert max(map(cell_len, found)) <= width
    for whole in (LONG, "stock", "nightly", *CRONS, "(America/Argentina/Buenos_Aires)"):
        assert any(whole in line for line in found), whole
    assert " ".join(" ".join(found).split()).count("ConnectionError: ") == 2


def test_a_wide_terminal_has_a_line_for_each_row() -> None:
    found = drawn(300)
    assert len(found) == 1 + len(ROWS)
    assert found[2].split("  ")[0] == LONG
    assert found[2].endswith(ERROR)


def test_the_table_at_80_columns() -> None:
    assert drawn(80) == TABLE.splitlines()[1:]


TABLE = """
schedule  timetable                state   runs
stock     */15 6-22 * * mon-fri    active     0
          (America/Argentina/Buenos_Aires)
warehouse-inventory-reconciliation-eu-west
          5,25,45 */2 * * *        active     1
          ConnectionError: HTTPSConnectionPool(host="prices.example.com",
          port=443): Max retries
nightly   0 2 * * * (Europe/Oslo)  active     2
invoices  0 6 1 jan,apr,jul,oct *  active     3
          ConnectionError: HTTPSConnectionPool(host="prices.example.com",
          port=443): Max retries
"""
