"""Calendars: what their definitions say and mean."""

from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pgbeat.errors import InvalidCalendar, InvalidTimetable
from pgbeat.schedules.calendars import exclusions
from pgbeat.schedules.calendars.definitions import parse
from tests.support.problems import raises
from tests.support.threads import together

WEEKEND = {"weekdays": ["sat", "sun"]}

OFFICE: dict[str, Any] = {
    "timezone": "Europe/Oslo",
    "holidays": {"country": "NO"},
    "only": {"weekdays": ["mon-fri"], "windows": [{"from": "09:00", "to": "17:00"}]},
}


def why(definition: Any, *times: str, timezone: str = "UTC") -> list[str | None]:
    """What the calendar `c` says of times, given in UTC unless they have an offset."""
    rules = parse("c", definition)
    reasons = []
    for text in times:
        moment = datetime.fromisoformat(text)
        reason = rules.exclusion(moment if moment.tzinfo else moment.replace(tzinfo=UTC), timezone)
        assert reason is None or reason.startswith("calendar 'c': ")
        reasons.append(reason and reason.removeprefix("calendar 'c': "))
    return reasons


def wrong(definition: Any) -> list[str]:
    """The mistakes that a definition is refused for."""
    with pytest.raises(InvalidCalendar) as refused:
        parse("c", definition)
    first, *others = str(refused.value).splitlines()
    if not others:
        return [first.removeprefix("calendar 'c': ")]
    assert first == f"calendar 'c' has {len(others)} mistakes:"
    return [line.strip() for line in others]


def july(*days: int) -> list[str]:
    """Midnight on days of July 2026, of which the 6th is a Monday."""
    return [f"2026-07-{day:02} 00:00" for day in days]


def test_days_of_the_week() -> None:
    times = ("2026-07-03 23:59:59", "2026-07-04 00:00", "2026-07-05 23:59", "2026-07-06 00:00")
    assert why(WEEKEND, *times) == [None, "Saturday", "Sunday", None]
    some = {"weekdays": ["Friday", "MON-tue"]}
    assert why(some, *july(6, 7, 8)) == ["Monday", "Tuesday", None]
    # Over the end of the week.
    assert why({"weekdays": ["sat-mon"]}, *july(5, 6, 7)) == ["Sunday", "Monday", None]


def test_dates() -> None:
    definition = {"dates": ["2026-12-24", "05-17", "2026-07-06/2026-07-10", "12-27/01-02", "02-29"]}
    excluded = {
        "2026-12-24": "2026-12-24",
        "2026-05-17": "2026-05-17 (05-17 every year)",
        "2031-05-17": "2031-05-17 (05-17 every year)",
        "2026-07-06": "2026-07-06 (2026-07-06 to 2026-07-10)",
        "2026-07-10": "2026-07-10 (2026-07-06 to 2026-07-10)",
        "2030-12-31": "2030-12-31 (12-27 to 01-02 every year)",
        "2031-01-02": "2031-01-02 (12-27 to 01-02 every year)",
        "2028-02-29": "2028-02-29 (02-29 every year)",
    }
    assert why(definition, *(f"{day} 23:00" for day in excluded)) == [*excluded.values()]
    beside = [
        "2027-12-24",
        "2026-07-05",
        "2026-07-11",
        "2030-12-26",
        "2031-01-03",
        "2027-02-28",
        "2027-03-01",
    ]
    assert why(definition, *beside) == [None] * len(beside)


def test_holidays_of_countries_and_of_markets() -> None:
    definition = {"holidays": [{"country": "NO"}, {"country": "SE"}, {"market": "NYSE"}]}
    excluded = {
        "2026-04-03": "Good Friday (NO)",
        "2026-05-17": "Constitution Day (NO)",
        "2026-06-20": "Midsummer Day (SE)",
        "2026-11-26": "Thanksgiving Day (NYSE)",
    }
    assert why(definition, *excluded) == [*excluded.values()]
    norway = {"holidays": {"country": "NO"}}
    assert why(norway, "2026-12-24", "2026-12-25") == [None, "Christmas Day (NO)"]


@pytest.mark.parametrize("country", ["DE", "FR", "JP", "TH", "UA"])
def test_holidays_have_english_names_whatever_the_locale(
    country: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANGUAGE", "uk")
    exclusions.region.cache_clear()
    [reason] = why({"holidays": {"country": country}}, "2021-01-01")
    assert reason == f"New Year's Day ({country})"


def test_holidays_of_a_part_of_a_country_and_of_kinds() -> None:
    everywhere = {"holidays": {"country": "DE", "subdivision": None}}
    bavaria = {"holidays": {"country": "DE", "subdivision": "BY"}}
    assert why(everywhere, "2026-01-06") == [None]
    assert why(bavaria, "2026-01-06") == ["Epiphany (DE-BY)"]
    friday = "2026-04-02"  # the day before Good Friday
    banks = {"holidays": {"country": "DK", "categories": ["optional"]}}
    assert why({"holidays": {"country": "DK"}}, "2026-06-05") == [None]
    assert why(banks, "2026-06-05") == ["Constitution Day (DK)"]
    assert why({"holidays": {"country": "DK"}}, friday) == ["Maundy Thursday (DK)"]


def test_a_holiday_that_is_made_up_for_in_the_year_before() -> None:
    exclusions.region.cache_clear()
    # The first that is asked about that country: the year 2022 is not known yet.
    assert why({"holidays": {"country": "US"}}, "2021-12-31") == ["New Year's Day (observed) (US)"]


def test_windows() -> None:
    noon, night = {"from": "12:00", "to": "12:30:15"}, {"from": "22:00", "to": "24:00"}
    inside = ["within 12:00–12:30:15"] * 2 + ["within 22:00–24:00"] * 2
    times = ("12:00", "12:30:14.9", "22:00", "23:59:59")
    definition = {"windows": [noon, night]}
    assert why(definition, *(f"2026-07-06 {time}" for time in times)) == inside
    outside = ("11:59:59.999999", "12:30:15", "00:00")
    assert why(definition, *(f"2026-07-06 {time}" for time in outside)) == [None] * 3


def test_a_window_across_midnight() -> None:
    definition = {"windows": [{"from": "22:00", "to": "06:00"}]}
    times = ("21:59", "22:00", "00:00", "05:59:59", "06:00")
    night = ["within 22:00–06:00"] * 3
    assert why(definition, *(f"2026-07-06 {time}" for time in times)) == [None, *night, None]


def test_a_window_across_midnight_is_of_the_day_on_which_it_starts() -> None:
    rules = parse("c", {"windows": [{"from": "22:00", "to": "06:00", "weekdays": ["fri", "sun"]}]})
    monday = datetime(2026, 7, 6, tzinfo=UTC)
    nights = [(monday + timedelta(days=day, hours=22)) for day in (-8, -3, -1, 4, 6, 11)]
    for minute in range(7 * 24 * 60):
        moment = monday + timedelta(minutes=minute)
        inside = any(start <= moment < start + timedelta(hours=8) for start in nights)
        reason = "calendar 'c': within fri, sun 22:00–06:00" if inside else None
        assert rules.exclusion(moment, "UTC") == reason


def test_times_are_those_of_the_calendars_zone_else_of_the_schedules() -> None:
    evening = "2026-07-03 22:30"  # a Friday
    assert why(WEEKEND, evening) == [None]
    assert why(WEEKEND, evening, timezone="Europe/Oslo") == ["Saturday"]
    named = WEEKEND | {"timezone": "America/New_York"}
    assert why(named, evening, "2026-07-06 03:59", timezone="Europe/Oslo") == [None, "Sunday"]
    with raises(InvalidTimetable, ("timezone", "unknown")):
        why(WEEKEND, evening, timezone="Mars/Olympus")


def test_windows_are_by_the_clock_on_the_wall_when_it_is_put_back() -> None:
    definition = {"timezone": "Europe/Oslo", "windows": [{"from": "02:00", "to": "03:00"}]}
    # 02:30 comes twice in autumn, and never in spring.
    hour = ["within 02:00–03:00"] * 2
    autumn = ("2026-10-25 00:30", "2026-10-25 01:30", "2026-10-25 02:00")
    assert why(definition, *autumn) == [*hour, None]
    assert why(definition, "2026-03-29 00:59", "2026-03-29 01:00") == [None, None]


def test_business_hours() -> None:
    times = ("2026-07-06 08:59", "2026-07-06 09:00", "2026-07-06 16:59", "2026-07-06 17:00")
    hours = "outside 09:00–17:00"
    assert why(OFFICE, *(f"{time}+02:00" for time in times)) == [hours, None, None, hours]
    days = ("2026-07-04 12:00", "2026-12-25 12:00", "2026-12-28 12:00")
    assert why(OFFICE, *days) == ["Saturday", "Christmas Day (NO)", None]


def test_only_some_days() -> None:
    payday = {"only": {"dates": ["2026-07-15", "12-15"]}}
    assert why(payday, "2026-07-15", "2030-12-15") == [None, None]
    assert why(payday, "2026-07-16") == ["2026-07-16 is not one of its days"]
    # Days of several kinds: any of them will do.
    free = {"only": WEEKEND | {"holidays": {"country": "NO"}}}
    assert why(free, "2026-07-04", "2026-12-25") == [None, None]
    assert why(free, "2026-12-23") == ["2026-12-23 is not one of its days"]


def test_only_some_hours_of_some_days() -> None:
    windows = [
        {"from": "09:00", "to": "17:00", "weekdays": ["mon-fri"]},
        {"from": "22:00", "to": "02:00", "weekdays": ["sat"]},
    ]
    outside = "outside mon–fri 09:00–17:00, sat 22:00–02:00"
    times = ("2026-07-03 10:00", "2026-07-04 10:00", "2026-07-05 01:59", "2026-07-06 01:59")
    assert why({"only": {"windows": windows}}, *times) == [None, outside, None, outside]


def test_what_is_excluded_is_so_even_where_it_is_allowed() -> None:
    definition = {"only": {"weekdays": ["mon-fri"]}, "weekdays": ["wed"], "dates": ["2026-07-06"]}
    assert why(definition, *july(6, 7)) == ["2026-07-06", None]
    assert why(definition, *july(8, 11)) == ["Wednesday", "Saturday"]


@pytest.mark.parametrize("definition", [{}, {"dates": []}, {"only": None, "weekdays": None}])
def test_without_rules_nothing_is_excluded(definition: Any) -> None:
    assert why(definition, "2026-07-04") == [None]
    assert str(parse("c", definition)) == "nothing is excluded"


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        (WEEKEND, "not sat, sun"),
        (OFFICE, "only mon–fri at 09:00–17:00; not holidays of NO"),
        ({"weekdays": ["sun", "tue", "wed", "thu"]}, "not tue–thu, sun"),
        (
            {"dates": ["2026-12-24", "05-17", "12-27/01-02"]},
            "not 2026-12-24, 05-17 every year, 12-27 to 01-02 every year",
        ),
        ({"dates": ["01-01", "01-02", "01-03", "01-04"]}, "not 4 dates"),
        (
            {"holidays": [{"country": "DE", "subdivision": "BY"}, {"market": "NYSE"}]},
            "not holidays of DE-BY, holidays of NYSE",
        ),
        (
            {"windows": [{"from": "22:00", "to": "06:00", "weekdays": ["mon-fri"]}]},
            "not mon–fri 22:00–06:00",
        ),
        ({"only": {"windows": [{"from": "09:00", "to": "17:00"}]}}, "only 09:00–17:00"),
    ],
)
def test_rules_in_words(definition: Any, words: str) -> None:
    assert str(parse("c", definition)) == words


def holidays(**region: Any) -> dict[str, Any]:
    return {"holidays": region}


def windows(**window: Any) -> dict[str, Any]:
    return {"windows": [{"from": "09:00", "to": "17:00"} | window]}


@pytest.mark.parametrize(
    ("field", "code", "definitions"),
    [
        ("", "malformed", [[], None]),
        ("weekday", "unknown_field", [{"weekday": ["sat"]}]),
        ("timezone", "unknown", [{"timezone": "Mars/Olympus"}, {"timezone": ""}]),
        ("timezone", "malformed", [{"timezone": 1}]),
        ("dates", "malformed", [{"dates": "12-24"}]),
        (
            "dates[0]",
            "malformed",
            [
                {"dates": [date]}
                for date in (
                    20261224,
                    "20261224",
                    "0000-01-01",
                    "01-01/01-02/01-03",
                    "12-24/2027-01-02",
                    "2027-01-02/2026-12-24",
                )
            ],
        ),
        ("weekdays[0]", "malformed", [{"weekdays": [day]} for day in ("sunay", "7", True)]),
        ("holidays", "malformed", [{"holidays": "NO"}]),
        ("holidays[0]", "malformed", [{"holidays": ["NO"]}, {"holidays": [None]}]),
        ("holidays", "required", [{"holidays": {}}, holidays(country="NO", market="NYSE")]),
        ("holidays.contry", "unknown_field", [holidays(contry="NO")]),
        ("holidays.country", "unknown", [holidays(country="no"), holidays(country="Norwegen")]),
        ("holidays.market", "unknown", [holidays(market="nyse")]),
        (
            "holidays.subdivision",
            "unknown",
            [holidays(country="DE", subdivision="by"), holidays(country="SE", subdivision="Lund")],
        ),
        ("holidays.categories[0]", "unknown", [holidays(country="DK", categories=["optionals"])]),
        ("windows", "malformed", [{"windows": {"from": "22:00", "to": "06:00"}}]),
        ("windows[0]", "malformed", [{"windows": ["22:00-06:00"]}]),
        ("windows[0].form", "unknown_field", [windows(form="22:00")]),
        ("windows[0].to", "required", [{"windows": [{"from": "22:00"}]}]),
        ("windows[0].from", "malformed", [windows(**{"from": at}) for at in ("9:00", "24:00")]),
        ("windows[0].to", "malformed", [windows(to=17)]),
        ("windows[0]", "conflict", [windows(to="09:00")]),
        ("windows[0].weekdays", "required", [windows(weekdays=[])]),
        ("only", "required", [{"only": {}}, {"only": {"weekdays": []}}]),
        ("only", "malformed", [{"only": [WEEKEND]}]),
        ("only.only", "unknown_field", [{"only": {"only": {}}}]),
        ("only.weekdays", "malformed", [{"only": {"weekdays": "sat"}}]),
    ],
)
def test_a_mistake_has_its_field_and_code(field: str, code: str, definitions: list[Any]) -> None:
    for definition in definitions:
        with raises(InvalidCalendar, (field, code)):
            parse("c", definition)


def test_every_mistake_is_told_at_once() -> None:
    holidays = {"country": "US", "subdivision": "XX1", "categories": ["x1", "x2"]}
    definition = {
        "zone": "UTC",
        "dates": ["x", "12-24", "y"],
        "weekdays": ["xyz"],
        "holidays": [holidays, {"country": "XX1"}],
        "windows": [{"from": "x", "to": "y", "weekdays": ["z"]}],
        "only": {"dates": ["z"]},
    }
    starts = [mistake.split(";")[0].split(" is ")[0] for mistake in wrong(definition)]
    assert starts == [
        "there",
        "dates: 'x'",
        "dates: 'y'",
        "holidays: category 'x1'",
        "holidays: category 'x2'",
        "holidays: subdivision 'XX1'",
        "holidays: country 'XX1'",
        "windows: from 'x'",
        "windows: to 'y'",
        "weekdays: 'z'",
        "weekdays: 'xyz'",
        "only: dates: 'z'",
    ]


MISSING = (
    "holidays: the package `holidays` is missing; install it with `pip install 'pgbeat[calendars]'`"
)


@pytest.mark.usefixtures("without_holidays")
def test_without_the_package_other_rules_work() -> None:
    assert why(WEEKEND, "2026-07-04") == ["Saturday"]
    assert wrong({"holidays": {"country": "NO"}, "dates": ["x"]})[1] == MISSING


def test_a_year_of_holidays_is_asked_by_many_threads_at_once() -> None:
    exclusions.region.cache_clear()
    days = [date(year, 12, 25) for year in range(1990, 2090)]
    rules = parse("c", {"holidays": {"country": "NO"}})
    noon = [datetime(day.year, day.month, day.day, 12, tzinfo=ZoneInfo("UTC")) for day in days]

    def ask() -> set[str | None]:
        return {rules.exclusion(moment, "UTC") for moment in noon}

    assert together([ask] * 8) == [{"calendar 'c': Christmas Day (NO)"}] * 8
