"""Runs an application on pgbeat: `python -m tests.applications airflow`."""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.applications import airflow, django_apps, libraries, nautobot, pretix, weblate
from tests.applications.common import BROKEN, Result, table

#: Each returns a result for each set of services that it ran with.
APPLICATIONS: dict[str, Callable[[Path, str], list[Result]]] = {
    "airflow": airflow.run,
    "libraries": libraries.run,
    "nautobot": partial(django_apps.run, nautobot.APPLICATION),
    "pretix": partial(django_apps.run, pretix.APPLICATION),
    "weblate": partial(django_apps.run, weblate.APPLICATION),
}


def main() -> int:
    """Runs what the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.applications", description=__doc__)
    parser.add_argument("name", choices=APPLICATIONS)
    parser.add_argument("--keep", action="store_true", help="keep the environment and the logs")
    parser.add_argument("--json", type=Path, metavar="F", help="write the results to a file")
    parser.add_argument("--build", choices=BROKEN, default="", help="a broken build; must fail")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with all that was started
    folder = Path(tempfile.gettempdir()) / "pgbeat-applications" / given.name
    folder.mkdir(parents=True, exist_ok=True)
    print(f"folder {folder}", flush=True)
    results = APPLICATIONS[given.name](folder, given.build)
    print(table(results))
    if given.json:
        given.json.write_text(json.dumps([result._asdict() for result in results], indent=1))
    if not given.keep:
        shutil.rmtree(folder)
    return 0 if all(holds for result in results for holds in result.checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
