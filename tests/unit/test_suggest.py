"""Suggestions for unknown names."""

import pytest

from pgbeat.suggest import did_you_mean, nearest, nearest_task


@pytest.mark.parametrize(
    ("word", "known", "found"),
    [
        ("nigtly", ["nightly", "weekly"], "nightly"),
        ("no", ["NO", "SE"], "NO"),
        ("DUE", ["due"], "due"),
        ("something", ["due"], None),
        ("something", [], None),
        ("ls", ["logs", "list", "show"], "list"),
        ("drop", ["drop"], "drop"),
        ("--count", ["--json", "--limit"], "--limit"),
        ("--lmit", ["--json", "--limit"], "--limit"),
    ],
)
def test_nearest(word: str, known: list[str], found: str | None) -> None:
    assert nearest(word, known) == found
    assert did_you_mean(word, known) == ("" if found is None else f"did you mean {found!r}?")


def test_a_higher_cutoff_finds_less() -> None:
    assert nearest("queue", ["queue_name"]) == "queue_name"
    assert nearest("queue", ["queue_name"], cutoff=0.9) is None


@pytest.mark.parametrize(
    ("task", "known", "found"),
    [
        ("shop.tasks.bill", ["billing.jobs.bill", "shop.tasks.bills"], "billing.jobs.bill"),
        ("shop.tasks.bil", ["billing.jobs.bill", "shop.tasks.bill"], "shop.tasks.bill"),
        ("celery.chor", ["celery.chord"], None),
    ],
)
def test_nearest_task(task: str, known: list[str], found: str | None) -> None:
    assert nearest_task(task, known) == found
