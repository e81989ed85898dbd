"""What is sent all the time reads a bounded number of rows, however many jobs there are."""

import pytest

from pgbeat.testing.databases import Databases
from tests.plans import QUERIES, explained, fill


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rows", [60_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_no_plan_goes_through_a_table(pgbeat_databases: Databases, rows: int) -> None:
    """Each statement is explained with the very parameters that it was sent with, and without any,
    should Postgres keep a plan like that; its statistics know nothing of what has not ended."""
    with pgbeat_databases.lent() as dsn:
        fill(dsn, rows)
        problems = []
        with explained(dsn, rows) as (world, plans):
            for name, query in QUERIES.items():
                found = plans.of(query.call, world)
                assert found, name
                for problem in query.problems(found):
                    details = "\n".join(map(str, (each for plan in found for each in plan.scans)))
                    problems.append(f"{name}: {problem}\n{details}\n{found[-1].statement}")
        assert not problems, "\n\n".join(problems)
