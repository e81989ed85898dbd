"""Rules for the names of schedules, calendars, lanes, templates and webhooks."""

import re

#: The namespace of an app that names none.
NAMESPACE = "default"
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f/]")


def name_problem(name: str) -> str | None:
    """Returns what is wrong with a name, by the database's rules; `None` if it is valid."""
    if not 1 <= len(name) <= 200:
        return f"a name has 1 to 200 characters, not {len(name)}"
    if _UNFIT.search(name) or name.strip(" ") != name:
        return "a name has no slash, no control character and no space at its ends"
    if name in (".", ".."):
        return f"a name is not {name!r}, which browsers take out of an address"
    return None
