"""Libraries that people hang on Celery, with the newest Celery that each allows."""

from pathlib import Path
from subprocess import CalledProcessError

from tests.applications.common import Result, Site, environment, version
from tests.support.processes import ROOT

APP = "tests.applications.library_app"
#: The library of each scenario of the app. The one with Redis beside it keeps its locks there.
LIBRARIES = {
    "batches": "celery-batches",
    "progress": "celery-progress",
    "django": "django-celery-results",
    "otel": "opentelemetry-instrumentation-celery",
    "sentry": "sentry-sdk",
    "singleton": "celery-singleton",
    "once": "celery-once",
    "unique": "pgbeat",
}
#: This one allows Celery 5.6 at most.
OLD = ("celery-batches",)
OTHERS = (*(set(LIBRARIES.values()) - {*OLD, "pgbeat"}), "opentelemetry-sdk", "psutil")


def run(folder: Path, build: str) -> list[Result]:
    """Runs each library's scenario with a prefork worker."""
    others, old = environment(folder, *OTHERS), environment(folder / "old", *OLD, "psutil")
    results = []
    with Site(folder / "run", others, redis=True) as site:
        database, path = site.database("libraries"), site.env["PATH"]
        site.migrate(database, build)
        site.env |= {"DATABASE": database, "REDIS": site.redis_url, "PYTHONPATH": str(ROOT)}
        for scenario, library in LIBRARIES.items():
            programs = old if library in OLD else others
            site.env |= {"LIBRARY": scenario, "PATH": f"{programs}:{path}"}
            works = _works(site, scenario)
            versions = f"{version(programs, library)}, Celery {version(programs, 'celery')}"
            results.append(Result(f"{library} {versions}", {scenario: works}, {}, {}))
    return results


def _works(site: Site, scenario: str) -> bool:
    """Starts a worker, and the client that asks it; returns whether that was content."""
    (site.folder / "go").unlink(missing_ok=True)
    site.start("worker", "celery", "-A", APP, "worker", "-c", "2", "-l", "INFO")
    try:
        site.run("python", "-m", APP)
    except CalledProcessError:
        print(f"{scenario}: {(site.folder / 'commands.log').read_text()[-2000:]}")
        return False
    finally:
        site.kill("worker")
    return True
