"""Lists the console's pages, each about a thing that is there."""

import re
from urllib.parse import quote

from tests.support.hostile_rows import write
from tests.support.rows import Sql
from tests.web.api.test_permissions import TABLE

#: What the names in paths are of.
_NAMES = {"templates": "t", "webhooks": "h", "lanes": "lane", "calendars": "c", "queues": "celery"}


def shown_pages(sql: Sql, text: str = "a", name: str = "s") -> list[str]:
    """Writes a thing of each kind; returns the paths of all pages, below the console's."""
    ids = write(sql, text, name)

    def path_of(route: str) -> str:
        noun = route.partition("/")[0]
        path = re.sub(r"{name(:path)?}", _NAMES.get(noun, quote(name, safe="")), route)
        return path.format(job_id=ids["job"], group_id=ids["group"])

    routes = [route.removeprefix("GET /console/") for route in TABLE if "GET /console/" in route]
    return [path_of(route) for route in routes if route not in ("", "{name:path}", "changes")]
