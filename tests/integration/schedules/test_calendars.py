"""Calendars: what their definitions say and mean, how they are kept, and who uses them."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event, make_url
from sqlalchemy.exc import IntegrityError

from pgbeat.access.actors import Actor
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import postgres_url
from pgbeat.config.settings import Settings
from pgbeat.database import connections
from pgbeat.errors import AlreadyExists, InvalidCalendar, InvalidSchedule, NotFound
from pgbeat.schedules import model as schedules
from pgbeat.schedules import writes
from pgbeat.schedules.calendars import control as calendar_control
from pgbeat.schedules.calendars import model as calendars
from pgbeat.schedules.calendars.exclusions import Rules
from tests.support.problems import raises
from tests.support.rows import Sql
from tests.support.threads import waiting
from tests.unit.schedules.test_calendars import MISSING, OFFICE

WEEKEND = {"weekdays": ["sat", "sun"]}


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    """A connection in a transaction that is not committed."""
    with connections.engine(postgres_url(database), "tests").connect() as connection:
        yield connection


@pytest.mark.usefixtures("without_holidays")
def test_without_the_package_a_calendar_with_holidays_is_refused(connection: Connection) -> None:
    with pytest.raises(InvalidCalendar) as refused:
        calendars.add(connection, "office", OFFICE)
    assert str(refused.value) == f"calendar 'office': {MISSING}"
    assert calendars.listing(connection) == []


@pytest.mark.usefixtures("without_holidays")
def test_without_the_package_asking_a_calendar_with_holidays_fails(
    connection: Connection, insert: "Insert"
) -> None:
    insert("office", OFFICE)
    found = calendars.load(connection, ["office"])
    for _ in range(2):
        with pytest.raises(InvalidCalendar) as refused:
            calendars.exclusion(found, "office", datetime(2026, 7, 6, tzinfo=UTC), "UTC")
        assert str(refused.value) == f"calendar 'office': {MISSING}"


Insert = Callable[..., None]


@pytest.fixture
def insert(connection: Connection) -> Insert:
    """Writes a row as a person would, past all that Python checks."""

    def write(name: str, definition: Any, namespace: str = "default") -> None:
        connection.exec_driver_sql(
            "INSERT INTO pgbeat.calendars (namespace, name, definition) VALUES (%s, %s, %s)",
            (namespace, name, psycopg.types.json.Jsonb(definition)),
        )

    return write


def use(connection: Connection, calendar: str, *names: str, namespace: str = "default") -> None:
    for name in names:
        writes.add(
            connection,
            name,
            source="cli",
            namespace=namespace,
            task="tests.add",
            every=timedelta(hours=1),
            calendar=calendar,
        )


def test_add_and_get(connection: Connection) -> None:
    row = calendars.add(connection, "office", OFFICE)
    assert row == calendars.get(connection, "office")
    assert (row.namespace, row.name, row.definition) == ("default", "office", OFFICE)
    assert row.created_at == row.updated_at == connections.now(connection)
    assert row.exclusion(datetime(2026, 7, 4, tzinfo=UTC), "UTC") == "calendar 'office': Saturday"


def test_add_what_is_there(connection: Connection) -> None:
    calendars.add(connection, "office", OFFICE)
    with pytest.raises(AlreadyExists):
        calendars.add(connection, "office", WEEKEND)
    assert calendars.get(connection, "office").definition == OFFICE


@pytest.mark.parametrize("name", ["", "x" * 201, "a/b", " a", "a\n", ".", ".."])
def test_names(connection: Connection, insert: Insert, name: str) -> None:
    with raises(InvalidCalendar, ("name", "malformed")):
        calendars.add(connection, name, WEEKEND)
    with pytest.raises(IntegrityError, match="calendars_name_"):
        insert(name, WEEKEND)


def test_the_longest_name_and_an_odd_one(connection: Connection) -> None:
    for name in ("x" * 200, "Bürozeiten der Filiale 'Süd' 🗓"):
        assert calendars.add(connection, name, WEEKEND).name == name


def test_a_definition_with_mistakes_is_not_written(connection: Connection) -> None:
    with raises(InvalidCalendar, ("weekday", "unknown_field")):
        calendars.add(connection, "c", {"weekday": ["sat"]})
    calendars.add(connection, "c", WEEKEND)
    with raises(InvalidCalendar, ("weekday", "unknown_field")):
        calendars.edit(connection, "c", {"weekday": ["sat"]})
    assert calendars.get(connection, "c").definition == WEEKEND


def test_the_database_takes_objects_only(insert: Insert) -> None:
    with pytest.raises(IntegrityError, match="calendars_definition_object"):
        insert("c", ["sat"])


def test_edit(connection: Connection) -> None:
    calendars.add(connection, "c", WEEKEND)
    calendars.add(connection, "other", WEEKEND)
    connection.exec_driver_sql("UPDATE pgbeat.calendars SET created_at = '2020-01-01 00:00Z'")
    connection.commit()
    row = calendars.edit(connection, "c", {"dates": ["12-24"]})
    assert row.definition == {"dates": ["12-24"]}
    assert row.updated_at == connections.now(connection) > row.created_at
    assert calendars.get(connection, "other").definition == WEEKEND
    with raises(NotFound, ("calendar", "not_found")):
        calendars.edit(connection, "office", WEEKEND)


def test_what_is_not_there_is_told_with_the_nearest(connection: Connection) -> None:
    with pytest.raises(NotFound, match=r"^there is no calendar 'ofice'; `pgbeat calendars list`"):
        calendars.get(connection, "ofice")
    calendars.add(connection, "office", WEEKEND)
    with pytest.raises(NotFound, match=r"^there is no calendar 'ofice'; did you mean 'office'\? `"):
        calendars.get(connection, "ofice")
    with pytest.raises(NotFound, match=r"^there is no calendar 'office' in namespace 'shop'; `"):
        calendars.get(connection, "office", namespace="shop")


def test_remove(connection: Connection) -> None:
    for name in ("a", "b"):
        calendars.add(connection, name, WEEKEND)
    calendars.remove(connection, "a")
    assert [row.name for row in calendars.listing(connection)] == ["b"]
    with pytest.raises(NotFound):
        calendars.remove(connection, "a")


def test_what_schedules_name_is_not_removed(connection: Connection) -> None:
    calendars.add(connection, "office", WEEKEND)
    use(connection, "office", "nightly")
    with raises(InvalidCalendar, ("", "in_use")):
        calendars.remove(connection, "office")
    use(connection, "office", *"fedcba")
    with pytest.raises(InvalidCalendar) as refused:
        calendars.remove(connection, "office")
    assert str(refused.value) == (
        "calendar 'office' is used by 'a', 'b', 'c', 'd', 'e' and 2 more; "
        "give them another one, or none, first"
    )
    for row in schedules.listing(connection):
        writes.edit(connection, row.name, calendar=None)
    calendars.remove(connection, "office")


def test_a_schedule_that_comes_to_name_it_meanwhile_is_waited_for(database: str, sql: Sql) -> None:
    engine = connections.engine(postgres_url(database), "tests")
    with engine.begin() as connection:
        calendars.add(connection, "office", WEEKEND)

    def remove() -> None:
        with engine.begin() as connection, raises(InvalidCalendar, ("", "in_use")):
            calendars.remove(connection, "office")

    with engine.begin() as connection:
        use(connection, "office", "nightly")
        with waiting(sql, remove):
            connection.commit()


def test_of_two_who_put_a_new_calendar_the_second_changes_it(database: str, sql: Sql) -> None:
    engine = connections.engine(postgres_url(database), "tests")
    holidays = {"dates": ["12-24"]}

    def put(connection: Connection, definition: object) -> bool:
        unit = UnitOfWork(connection, Settings(make_url(database)), Actor("me"))
        with unit.transaction():
            return calendar_control.put(unit, "office", definition)[1]

    def second() -> bool:
        with engine.connect() as connection:
            return put(connection, holidays)

    with engine.connect() as connection:
        calendars.add(connection, "office", WEEKEND)
        with waiting(sql, second) as changed:
            connection.commit()
        assert changed.result() is False
        assert calendars.get(connection, "office").definition == holidays


def test_a_schedule_names_a_calendar_that_is_there(connection: Connection) -> None:
    with pytest.raises(InvalidSchedule):
        use(connection, "office", "nightly")
    calendars.add(connection, "office", WEEKEND, namespace="shop")
    with pytest.raises(InvalidSchedule):
        use(connection, "office", "nightly")
    use(connection, "office", "nightly", namespace="shop")


def test_namespaces_are_apart(connection: Connection) -> None:
    shop = {"dates": ["12-24"]}
    calendars.add(connection, "office", WEEKEND)
    calendars.add(connection, "office", shop, namespace="shop")
    use(connection, "office", "nightly", namespace="shop")
    assert calendars.get(connection, "office").definition == WEEKEND
    assert [row.definition for row in calendars.listing(connection, namespace="shop")] == [shop]
    assert calendars.users(connection) == {}
    assert calendars.users(connection, namespace="shop") == {"office": ["nightly"]}
    assert calendars.load(connection, ["office"])["office"].definition == WEEKEND
    assert calendars.load(connection, ["office"], namespace="shop")["office"].definition == shop
    calendars.edit(connection, "office", {"dates": ["12-25"]})
    calendars.remove(connection, "office")
    assert calendars.get(connection, "office", namespace="shop").definition == shop


def test_load_many_in_one_statement(connection: Connection) -> None:
    for name in "abc":
        calendars.add(connection, name, WEEKEND)
    statements: list[str] = []
    event.listen(connection, "before_cursor_execute", lambda *args: statements.append(args[2]))
    assert calendars.load(connection, []) == {}
    assert statements == []
    assert set(calendars.load(connection, ["a", "c", "a", "x"])) == {"a", "c"}
    assert len(statements) == 1


def test_asking_those_that_were_loaded(connection: Connection) -> None:
    calendars.add(connection, "weekend", WEEKEND)
    found = calendars.load(connection, ["weekend", "x"])
    saturday = datetime(2026, 7, 4, tzinfo=UTC)
    assert calendars.exclusion(found, "weekend", saturday, "UTC") == "calendar 'weekend': Saturday"
    monday = saturday + timedelta(days=2)
    assert calendars.exclusion(found, "weekend", monday, "UTC") is None
    with raises(NotFound, ("calendar", "not_found")):
        calendars.exclusion(found, "x", saturday, "UTC")


def test_a_row_written_past_the_checks_stops_itself_alone(
    connection: Connection, insert: Insert
) -> None:
    insert("bad", {"weekday": ["sat"]})
    insert("good", WEEKEND)
    found = calendars.load(connection, ["bad", "good"])
    saturday = datetime(2026, 7, 4, tzinfo=UTC)
    assert calendars.exclusion(found, "good", saturday, "UTC") == "calendar 'good': Saturday"
    with raises(InvalidCalendar, ("weekday", "unknown_field")):
        calendars.exclusion(found, "bad", saturday, "UTC")


def test_a_definition_is_read_once_until_it_is_another(connection: Connection) -> None:
    def rules() -> Rules:
        return calendars.load(connection, ["c"])["c"].rules

    calendars.add(connection, "c", WEEKEND)
    first = rules()
    assert rules() is first
    calendars.edit(connection, "c", {"dates": ["12-24"]})
    assert str(rules()) == "not 12-24 every year"
    calendars.edit(connection, "c", WEEKEND)
    assert rules() is first


def test_changes_are_announced(database: str) -> None:
    engine = connections.engine(postgres_url(database), "tests")
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute("LISTEN pgbeat_schedules")
        for change, *definition in (
            (calendars.add, WEEKEND),
            (calendars.edit, {"dates": ["12-24"]}),
            (calendars.remove,),
        ):
            with engine.begin() as connection:
                change(connection, "c", *definition)
            assert [heard.channel for heard in listener.notifies(timeout=5, stop_after=1)] == [
                "pgbeat_schedules"
            ]
