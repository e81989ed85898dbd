"""Statements in `.sql` files beside the module that loads them."""

import pytest

from pgbeat.database import sql

FILE = "statements.sql"


def test_a_file_may_have_one_statement_whose_comments_are_left_out() -> None:
    assert sql.load(FILE) == "SELECT '{}'::jsonb, '[0-9]{8}'"


def test_parts_are_given_or_in_the_file() -> None:
    assert sql.load(FILE, "all", which="true") == "SELECT count(*) FROM words\n WHERE true"
    assert sql.load(FILE, "first", columns="id", those="{x}") == "SELECT id {x}"


@pytest.mark.parametrize("name", ["all", "no such"])
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(KeyError, match=r"which|no such"):
        sql.load(FILE, name)
