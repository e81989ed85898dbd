"""What is left of errors when their values are taken out."""

from fnmatch import fnmatchcase

import pytest

from pgbeat.monitoring.rollups.error_patterns import LONGEST, NO_ERROR, pattern


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("KeyError: 17", "KeyError: *"),
        ("KeyError: 'customer'", "KeyError: 'customer'"),
        ("KeyError: 'customer 17'", "KeyError: '*'"),
        ("Http404: no such page", "Http404: no such page"),
        ("botocore.S3Error", "botocore.S3Error"),
        (
            "AttributeError: 'NoneType' object has no attribute 'total'",
            "AttributeError: 'NoneType' object has no attribute 'total'",
        ),
        (
            "HTTPError: 503 Server Error for url: https://u:secret@api.example:8443/orders/abc?x=y",
            "HTTPError: * Server Error for url: https://*@api.example:8443/*",
        ),
        ("OSError: can't reach 10.0.0.3:5432, it isn't up", "OSError: can't reach *, it isn't up"),
        ("Timeout: 3.5 s at 2024-01-02T10:11:12.123+02:00", "Timeout: * s at *"),
        ("Timeout: at 2024-01-02 10:11:12", "Timeout: at *"),
        ("Broken: /srv/app/mail.py:17 of 0x7f3a", "Broken: /srv/app/mail.py:* of *"),
        ("Bounced: mail to a.b+c@shop.example", "Bounced: mail to *"),
        ("Bad: [1, 2, 3] of {'a': 1, 'b': 'x y'}", "Bad: [*] of {'a': *, 'b': '*'}"),
        ('UniqueViolation: constraint "users_key"', 'UniqueViolation: constraint "users_key"'),
        ("Cut: 'a b c " + "d " * 400, "Cut: '*"),
        ("Failed: here\nDETAIL: there", "Failed: here"),
        (
            "the job before it, 6f0e7cf0-1a2b-4a4a-9a9a-abcdefabcdef, is still running",
            "the job before it, *, is still running",
        ),
        ("  ", NO_ERROR),
        (None, NO_ERROR),
    ],
)
def test_values_are_taken_out(said: str | None, expected: str) -> None:
    assert pattern(said) == expected
    assert pattern(expected) == expected
    if expected != NO_ERROR:  # with `*` after it, it is a glob
        assert fnmatchcase(said or "", f"{expected}*".replace("[", "?"))


@pytest.mark.parametrize("said", ["E: " + "word " * 200, "E: " + "a" * 900, "E: " + "'b " * 300])
def test_a_pattern_is_short(said: str) -> None:
    assert len(pattern(said)) <= LONGEST
    assert pattern(said).endswith(("*", "*'"))
