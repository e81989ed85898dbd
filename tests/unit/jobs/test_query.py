"""Queries for jobs: what they mean, and how they are written."""

from datetime import UTC, datetime, timedelta

import pytest

from pgbeat.errors import InvalidInput
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.searching import query
from tests.support.problems import raises

NOW = datetime(2026, 12, 24, 12, tzinfo=UTC)
GROUP = "9d0c1a52-7c56-4c6e-9f0c-0c7f4a5d1a11"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("", {}),
        ("state:failed", {"state": "failed"}),
        ("state:failed,cancelled", {"states": ("failed", "cancelled")}),
        ("task:prices*", {"task": "prices*"}),
        (
            "lane:gpu queue:q template:t by:user:alice",
            {"lane": "gpu", "queue": "q", "template": "t", "created_by": "user:alice"},
        ),
        (f"group:{GROUP}", {"group_id": GROUP}),
        ("label:team=billing label:a=b=c", {"labels": {"team": "billing", "a": "b=c"}}),
        ("tag:eu tag:uk", {"tags": ["eu", "uk"]}),
        (
            "arg.site=x arg.order.id:5 arg.0=a=b",
            {"arguments": [("site", "x"), ("order.id", "5"), ("0", "a=b")]},
        ),
        ("error:503", {"error": "503", "state": "failed"}),
        ('error:"timed out" state:cancelled', {"error": "timed out", "state": "cancelled"}),
        ("since:2h", {"created_from": NOW - timedelta(hours=2)}),
        ("before:2026-12-24T09:00", {"created_until": datetime(2026, 12, 24, 9, tzinfo=UTC)}),
        ("since:2026-12-24T09:00+01:00", {"created_from": datetime(2026, 12, 24, 8, tzinfo=UTC)}),
        ("is:late is:retried is:system", {"late": True, "is_retried": True, "is_system_job": True}),
        ("state:failed is:final", {"state": "failed", "is_retried": False}),
        ('prices 4fe1 "http://x"', {"words": ["prices", "4fe1", "http://x"]}),
    ],
)
def test_a_query_is_a_filter(text: str, fields: dict[str, object]) -> None:
    asked = query.parse(text)
    assert asked.filter("default", NOW) == Filter("default", **fields)  # type: ignore[arg-type]
    assert query.parse(str(asked)) == asked


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("stat:failed lanes:x", ["unknown", "unknown"]),
        ("state:", ["unknown"]),
        ("arg:x", ["unknown"]),
        ("x" * 1001, ["too_long"]),
        (" ".join(f"w{n}" for n in range(21)), ["too_long"]),
        ("a\0b", ["unstorable"]),
        ("state:faild since:soon before:99999999999999999d", ["malformed"] * 3),
        ("lane:a lane:b", ["conflict"]),
        ("label:team=a label:team=b", ["malformed"]),
        ("is:retried is:final", ["malformed"]),
        ("group:12 label:x is:early", ["malformed"] * 3),
        ("colour:red state:fialed since:x", ["unknown", "malformed", "malformed"]),
    ],
)
def test_all_mistakes_are_found(text: str, codes: list[str]) -> None:
    with raises(InvalidInput, *[("q", code) for code in codes]):
        query.parse(text).filter("default", NOW)


def test_values_keep_spaces_and_quotes() -> None:
    for value in ("a b", 'say "no"', "back\\slash", "x:y", "*503*"):
        asked = query.of({"error": value, "word": value})
        assert query.parse(str(asked)) == asked


def test_terms_are_replaced_and_removed() -> None:
    asked = query.parse("state:failed tag:a tag:b")
    assert str(asked.having(state="running")) == "tag:a tag:b state:running"
    assert str(asked.having(state="")) == "tag:a tag:b"
    assert str(asked.less(query.Term("tag", "a"))) == "state:failed tag:b"
    both = query.join([asked, query.parse("state:paused tag:b")])
    assert str(both) == "tag:a tag:b state:paused"


@pytest.mark.parametrize(
    ("text", "beside", "fields"),
    [
        ("label:a=b", {"labels": {"c": "d"}}, {"labels": {"a": "b", "c": "d"}}),
        ("state:failed,cancelled", {"state": "failed"}, {"state": "failed"}),
        ("error:503", {"state": "cancelled"}, {"error": "503", "state": "cancelled"}),
        ("since:2h", {"created_from": NOW}, {"created_from": NOW}),
        ("before:2h", {"created_until": NOW}, {"created_until": NOW - timedelta(hours=2)}),
        ("task:a", {"task": "a", "lane": None}, {"task": "a"}),
        ("task:a", {"task": "b"}, None),
        ("label:a=b", {"labels": {"a": "c"}}, None),
        ("state:failed,cancelled", {"state": "completed"}, None),
    ],
)
def test_fields_beside_a_query_narrow_it(
    text: str, beside: dict[str, object], fields: dict[str, object] | None
) -> None:
    asked = query.parse(text)
    if fields is not None:
        expected = Filter("default", **fields)  # type: ignore[arg-type]
        assert asked.filter("default", NOW, beside) == expected
        return
    with raises(InvalidInput, ("q", "conflict")):
        asked.filter("default", NOW, beside)
