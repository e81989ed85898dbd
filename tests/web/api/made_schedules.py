"""Makes schedules by the API."""

from typing import Any

from tests.support.web import done

PATH = "/admin/scheduled-jobs"

#: The body of a new one.
SCHEDULE = {"name": "s", "task": "tests.add", "cron": "0 * * * *"}

CRON = {"task": "tests.add", "cron": "0 */6 * * *"}


def make(admin: Any, name: str = "s", **values: Any) -> Any:
    """Makes a schedule of every six hours, unless told otherwise."""
    return done(admin.post(PATH, json={"name": name, **CRON, **values}), 201)
