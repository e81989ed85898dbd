"""Makes schedules by the API, and reads what was audited."""

from typing import Any

from tests.support.web import done

PATH = "/admin/scheduled-jobs"

CRON = {"task": "tests.add", "cron": "0 */6 * * *"}


def make(admin: Any, name: str = "s", **values: Any) -> Any:
    """Makes a schedule of every six hours, unless told otherwise."""
    return done(admin.post(PATH, json={"name": name, **CRON, **values}), 201)


def audited(admin: Any) -> list[tuple[str, str, str]]:
    """Returns verb, kind and subject of the changes, the oldest first."""
    found = done(admin.get("/audit"))["changes"]
    return [(each["verb"], each["kind"], each["subject"]) for each in reversed(found)]
