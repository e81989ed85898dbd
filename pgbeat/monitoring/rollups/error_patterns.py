"""Reduces an error or a reason to its pattern: the text without its values."""

import re

#: Characters of a first line that are looked at, and of a pattern.
_READ, LONGEST = 500, 200
#: What stands for a value, and for several that follow each other.
_ANY = "*"
#: The pattern of a job that failed without an error.
NO_ERROR = "no error was recorded"

#: The class of an exception, which may have digits: `botocore.S3Error: …`.
_CLASS = re.compile(r"[^\W\d][\w.]*(?=:\s|:?$)")
#: A quoted value that is rather the name of something: `'NoneType'`, `"users_email_key"`.
_NAME = re.compile(r"[^\W\d]+(?:[.-][^\W\d]+)*")
# Quotes within words are apostrophes. What is quoted may be cut off by the end of what is read.
_VALUE = re.compile(
    r"""
    (?P<url> \b [a-z][a-z0-9+.-]* :// [^\s/?#'"<>()\[\]]+ ) [^\s'"<>()\[\]]*
  | (?<!\w) (?P<quote> ['"`]) (?P<quoted> .*? ) (?: (?P=quote) (?!\w) | \Z )
  | (?P<email> (?<![\w.+-]) [\w.+-]+ @ [\w.-]+ )
  | (?P<number> (?<![\w+-]) [\w+-]* \d [\w+-]* )
    """,
    re.VERBOSE | re.IGNORECASE,
)
_SEVERAL = re.compile(r"\*(?:[:.,;]?\ ?\*)+")


def pattern(message: str | None) -> str:
    """Returns the pattern of an error or a reason: its first line, with `*` for each value.

    Values are numbers, words with digits (ids, times, addresses), quoted text that is not a mere
    name, e-mail addresses, and paths of URLs. The exception's class stays as it is. A pattern is
    the pattern of itself, and with `*` after it, a glob of its errors.
    """
    line = (message or "").strip().partition("\n")[0][:_READ].rstrip()
    if not line:
        return NO_ERROR
    match = _CLASS.match(line)
    kept = match[0] if match else ""
    rest = _SEVERAL.sub(_ANY, _VALUE.sub(_placeholder, line[len(kept) :]))
    whole = kept + rest
    return whole if len(whole) <= LONGEST else whole[: LONGEST - 1].rstrip(" *") + _ANY


def _placeholder(match: re.Match[str]) -> str:
    if match["url"]:
        return f"{_host(match['url'])}/{_ANY}" if match[0] != match["url"] else _host(match["url"])
    if match["quote"]:
        if _NAME.fullmatch(match["quoted"]):
            return match[0]
        end = match["quote"] if match[0][1:].endswith(match["quote"]) else ""
        return f"{match['quote']}{_ANY}{end}"
    return _ANY


def _host(url: str) -> str:
    """Returns a scheme and a host, with `*` for a user and a password."""
    scheme, mark, place = url.partition("://")
    person, at, host = place.rpartition("@")
    return f"{scheme}{mark}{_ANY if person else ''}{at}{host}"
