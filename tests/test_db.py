"""Engines: what their connections tell libpq."""

import pytest

from pgbeat import db
from pgbeat.config import postgres_url

KEEPALIVES = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}


@pytest.mark.parametrize(
    ("query", "arguments", "changed"),
    [
        ({}, {}, {}),
        ({"keepalives_idle": "60", "tcp_user_timeout": "0"}, {},
         {"keepalives_idle": "60", "tcp_user_timeout": "0"}),
        ({}, {"keepalives_count": 9}, {"keepalives_count": "9"}),
    ],
)  # fmt: skip
def test_a_server_that_vanished_is_noticed_as_the_dsn_has_it(
    database: str, query: dict[str, str], arguments: dict[str, int], changed: dict[str, str]
) -> None:
    url = postgres_url(database).update_query_dict(query)
    with db.engine(url, "tests", arguments).connect() as connection:
        found = db.driver(connection).info.get_parameters()
    assert {key: found.get(key) for key in KEEPALIVES} == KEEPALIVES | changed
