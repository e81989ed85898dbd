"""`pgbeat events`: emits events, and lists them."""

import json

import pytest

from tests.integration.cli.conftest import Printed
from tests.support.command_line import Sql, cells, refused, run


def test_emitted_and_listed(printed: Printed, sql: Sql) -> None:
    assert printed("events", "list") == "There are no such events.\n"
    emit = ("events", "emit", "paid/12", "--value", '{"amount": 12}')
    assert printed(*emit, "--dry-run") == "Would emit event 'paid/12'.\n"
    assert sql("SELECT 1 FROM pgbeat.events UNION ALL SELECT 1 FROM pgbeat.audit") == []
    assert printed(*emit) == "Emitted event 'paid/12'.\n"
    assert printed("events", "emit", "paid/12") == (
        "There is an event 'paid/12' already; it stays.\n"
    )
    assert printed("events", "emit", "other") == "Emitted event 'other'.\n"
    rows = [cells(row) for row in printed("events", "list", "--admin").splitlines()[1:]]
    assert [(row[0], row[-1]) for row in rows] == [("other", "null"), ("paid/12", '{"amount": 12}')]
    listed = json.loads(printed("events", "list", "--prefix", "paid/", "--json"))
    assert [(row["key"], row["value"]) for row in listed] == [("paid/12", {"amount": 12})]
    assert sql("SELECT verb, kind, subject, origin FROM pgbeat.audit ORDER BY id") == [
        ("emit", "event", "paid/12", "cli"),
        ("emit", "event", "other", "cli"),
    ]


def test_a_long_list_says_so(database: str, printed: Printed) -> None:
    for key in "abc":
        printed("events", "emit", key)
    listed = run(database, "events", "list", "--limit", "2", "--json")
    assert [row["key"] for row in json.loads(listed.stdout)] == ["c", "b"]
    assert "there are more than these 2" in listed.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("k", "--value", "paid"), "is not JSON"),
        (("k", "--value", "NaN"), "NaN is not a JSON number"),
        ((" k",), "key must be text of 1 to 200 printable characters"),
        (("k", "--value", '"\\u0000"'), "the value of an event must be JSON"),
    ],
)
def test_what_can_be_no_event_is_refused(
    database: str, sql: Sql, arguments: tuple[str, ...], said: str
) -> None:
    result = run(database, "events", "emit", *arguments)
    assert said in refused(result, result.exit_code)
    assert result.exit_code
    assert sql("SELECT 1 FROM pgbeat.events") == []
