"""The statements that record executions, and the fields of a record."""

import re

import pytest

from pgbeat.database.prepared import Statement
from pgbeat.jobs.running.executions import BEGIN, GO_ON, ExecutionRecord


def fields(statement: Statement) -> list[str]:
    """Returns the names of the JSON's fields that a statement reads."""
    found = re.search(r"json_to_recordset\(.*?\) AS d \((.*?)\)", statement.sql, re.DOTALL)
    assert found is not None
    return [column.split()[0] for column in found[1].split(",")]


def test_a_new_execution_is_recorded_with_all_fields() -> None:
    assert {*fields(BEGIN), "is_new"} == set(ExecutionRecord._fields)


def test_a_known_execution_is_recorded_with_what_may_change() -> None:
    fixed = {
        "is_new",
        "worker",
        "worker_id",
        "pid",
        "acks_late",
        "retry_attempt",
        "began",
        "is_repeated",
        "job",
    }
    assert set(fields(GO_ON)) == set(ExecutionRecord._fields) - fixed


@pytest.mark.parametrize("statement", [BEGIN, GO_ON])
def test_a_statement_has_one_parameter(statement: Statement) -> None:
    assert set(re.findall(r"\$\d+", statement.sql)) == {"$1"}
