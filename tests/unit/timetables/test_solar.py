"""Solar timetables: against Celery's own, and what is refused."""

import sys
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from random import Random

import celery
import pytest
from celery import Celery
from celery.schedules import solar

from pgbeat.errors import InvalidTimetable
from pgbeat.timetables import SOLAR_EVENTS, Solar, parse_solar
from pgbeat.timetables import solar as module
from tests.support.problems import raises
from tests.unit.timetables.test_timetables import times, utc

OSLO = (59.91, 10.75)
SECOND = timedelta(seconds=1)
PLACES = [OSLO, (0, 0), (-33.87, 151.21), (40.71, -74.01), (-77.85, 166.67), (21.3, -157.86)]


@pytest.fixture(scope="module")
def celery_app() -> Celery:
    return Celery(set_as_current=False)


def in_celery(app: Celery, event: str, place: tuple[float, float], now: datetime) -> datetime:
    """When Celery's own schedule object is due next after `now`."""
    schedule = solar(event, *place, app=app, nowfun=lambda: now)
    remaining: timedelta = schedule.remaining_estimate(now)
    return now + remaining


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="Celery's own has mistakes")
@pytest.mark.parametrize("event", SOLAR_EVENTS)
def test_an_event_is_when_celery_has_it(celery_app: Celery, event: str) -> None:
    random = Random(event)  # noqa: S311
    for place in PLACES:
        now = datetime(2025, 1, 1, tzinfo=UTC) + random.random() * timedelta(days=3000)
        found = Solar(event, *place).next_after(now)
        assert found
        assert abs(found - in_celery(celery_app, event, place, now)) <= SECOND, (place, now)


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="Celery's own has mistakes")
def test_the_events_are_celerys() -> None:
    for event, (horizon, of_centre, direction) in SOLAR_EVENTS.items():
        assert horizon == solar._horizons[event]
        assert of_centre == solar._use_center_l[event]
        assert {-1: "next_rising", 0: "next_transit", 1: "next_setting"}[
            direction
        ] == solar._methods[event]
    assert set(SOLAR_EVENTS) == solar._all_events


@pytest.mark.slow
def test_a_sunset_is_due_once_a_day_whatever_the_year() -> None:
    for year in (1900, 2025, 2400):
        found = list(islice(times(Solar("sunset", *OSLO), datetime(year, 1, 1, tzinfo=UTC)), 400))
        steps = {later - earlier for earlier, later in pairwise(found)}
        assert timedelta(hours=23, minutes=55) < min(steps)
        assert max(steps) < timedelta(hours=24, minutes=5)
        assert {moment.microsecond for moment in found} == {0}


def test_asked_shortly_before_or_after_it_is_still_one_event() -> None:
    sunrise = Solar("sunrise", *OSLO)
    moment = sunrise.next_after(utc("2025-06-21 00:00"))
    assert moment
    for number in range(-30, 31):
        now = moment + number * timedelta(milliseconds=100)
        expected = moment if now < moment else sunrise.next_after(moment)
        assert sunrise.next_after(now) == expected


def test_the_polar_night_ends_with_the_next_sunrise() -> None:
    sunrise = Solar("sunrise", 69.65, 18.96)  # Tromsø
    first = sunrise.next_after(utc("2025-12-05 12:00"))
    assert first and utc("2026-01-10 00:00") < first < utc("2026-01-20 00:00")
    last = sunrise.previous(utc("2025-12-05 12:00"))
    assert last and utc("2025-11-20 00:00") < last < utc("2025-11-30 00:00")
    assert sunrise.previous(first) == last
    assert sunrise.count(last, first) == 1


@pytest.mark.parametrize(
    ("timetable", "first"),
    [
        (Solar("sunset", 69.65, 18.96), "2025-07-2"),  # the midnight sun ends
        (Solar("dusk_astronomical", *OSLO), "2025-08-"),  # nights are dark again
    ],
)
def test_days_without_the_event_are_left_out(timetable: Solar, first: str) -> None:
    assert str(timetable.next_after(utc("2025-06-10 12:00"))).startswith(first)


def test_where_there_is_no_such_event_there_is_no_next_time() -> None:
    """At the pole the sun goes round; no day has a sunrise there."""
    assert Solar("sunrise", 90, 0).next_after(utc("2025-04-01 00:00")) is None
    assert Solar("sunrise", 90, 0).previous(utc("2025-04-01 00:00")) is None


@pytest.mark.parametrize("place", [OSLO, (69.65, 18.96), (-77.85, 166.67), (10.0, -179.9)])
@pytest.mark.parametrize("event", ["sunset", "dawn_astronomical", "solar_noon"])
def test_a_count_is_as_many_as_there_are(event: str, place: tuple[float, float]) -> None:
    timetable = Solar(event, *place)
    random = Random(3)  # noqa: S311
    for days in (0.4, 1, 2, 3.5, 9, 60):
        after = utc("2025-02-20 00:00") + random.random() * timedelta(days=200)
        until = after + timedelta(days=days)
        found = 0
        for moment in times(timetable, after):
            if moment > until:
                break
            found += 1
        assert timetable.count(after, until) == found


@pytest.mark.timeout(20)
def test_two_thousand_years_are_not_walked_through() -> None:
    """Somebody set `next_run` to a time before any other."""
    polar, now = Solar("sunset", 69.65, 18.96), utc("2025-06-01 00:00")
    a_year = polar.count(now - timedelta(days=365), now)
    assert abs(polar.count(utc("0001-06-01 00:00"), now) / 2024 - a_year) < 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sunset 59.91 10.75", Solar("sunset", 59.91, 10.75)),
        ("  Dawn_Civil\t-33.87  +151.21 ", Solar("dawn_civil", -33.87, 151.21)),
        ("solar_noon 0 -180", Solar("solar_noon", 0, -180)),
    ],
)
def test_an_event_and_a_place(text: str, expected: Solar) -> None:
    assert parse_solar(text) == expected


BAD = [
    "",
    "sunset",
    "sunset 59,91 10,75 0",
    "moonrise 59.91 10.75",
    "sunset 59,91 0",
    "sunset 0 180.5",
    "sunset 0 nan",
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_event_or_no_place(text: str) -> None:
    with raises(InvalidTimetable, ("solar", "malformed")):
        parse_solar(text)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        (("moonrise", 0, 0), "unknown"),
        (("sunset", -90.1, 0), "out_of_range"),
        (("sunset", 0, float("nan")), "out_of_range"),
    ],
)
def test_a_timetable_of_no_event_or_no_place_is_refused(
    values: tuple[str, float, float], code: str
) -> None:
    with raises(InvalidTimetable, ("solar", code)):
        Solar(*values)


def test_without_ephem_it_says_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    module._event.cache_clear()
    monkeypatch.setitem(sys.modules, "ephem", None)
    timetable = parse_solar("sunset 59.91 10.75")  # which is still well formed
    with raises(InvalidTimetable, ("solar", "not_installed")):
        timetable.next_after(utc("2025-01-01 00:00"))
