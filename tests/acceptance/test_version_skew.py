"""Version skew: programs and schemas that are one version apart run beside each other.

There is no version before the baseline: the program of today is the older one, and the newer one
has a migration more. From the first release on, the older one is better taken from its tag.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgbeat.database.migrations import migrate
from tests.support import versions as releases
from tests.support.processes import ROOT, Process, until
from tests.support.recorded_workers import TrackedWorkers
from tests.support.rows import make_schedule
from tests.support.versions import next_version

#: What a later version may add.
ADDED = [
    f"ALTER TABLE pgbeat.{table} ADD COLUMN added_later text DEFAULT 'x'"
    for table in ("jobs", "executions", "schedules", "ticks", "workers", "consumers", "lanes")
]
UPGRADE = (
    "import sys; from pgbeat import config; from pgbeat.database.migrations import migrate; "
    "print(migrate.upgrade(config.postgres_url(sys.argv[1])))"
)


class Versions(TrackedWorkers):
    """Workers and beats of other versions of pgbeat."""

    def version(self, name: str) -> Path:
        """Returns the folder that holds one version, with the app in a folder beside it."""
        folder = self.folder / name
        folder.mkdir()
        here = self.folder / f"{name}-app"
        here.mkdir()
        shutil.copy(ROOT / "tests/support/apps/any_version.py", here)
        return folder

    def run_in(self, version: Path, *command: str) -> Process:
        """Starts a command that imports that version of pgbeat."""
        log = self.folder / f"process-{len(self.started)}.log"
        env = {**self.env, "PYTHONPATH": str(version)}
        cwd = self.folder / f"{version.name}-app"
        process = Process([sys.executable, *command], log, env, cwd=cwd)
        self.started.append(process)
        return process

    def celery_of(self, version: Path, *arguments: str) -> Process:
        return self.run_in(version, "-m", "celery", "-A", "any_version", *arguments, "-l", "INFO")

    def worker_of(self, version: Path) -> Process:
        name = f"w{len(self.started)}@tests"
        options = ("-n", name, "-P", "prefork", "-c", "2", "--without-mingle")
        return self.celery_of(version, "worker", *options)

    def beat_of(self, version: Path) -> Process:
        return self.celery_of(version, "beat", "-S", "pgbeat.Scheduler")

    def migrate_by(self, version: Path) -> None:
        """Upgrades the schema as that version does."""
        process = self.run_in(version, "-c", UPGRADE, self.database)
        assert process.wait(60) == 0, process.output

    def expect_recorded(self, ids: list[str], version: Path) -> None:
        """Waits until each job is recorded as completed, once, by that version."""
        for seen in self.ended(*ids):
            assert seen.job.state == "completed", seen
            assert [run.result for run in seen.runs] == [f"'{version}'"]

    def schema(self) -> str | None:
        [(version,)] = self.sql("SELECT version_num FROM pgbeat.migrations")
        return str(version)


@pytest.fixture
def versions(database: str, tmp_path: Path) -> Iterator[Versions]:
    found = Versions(database, tmp_path)
    yield found
    found.close()


def decides(versions: Versions, beat: Process) -> None:
    """A beat launches a schedule, and its job is recorded."""
    beat.says("This beat leads")
    make_schedule(versions.sql, due="0", task="tests.where")
    until(lambda: versions.sql("SELECT 1 FROM pgbeat.ticks WHERE outcome = 'launched'"))
    until(lambda: versions.states().get("pending", 0) == versions.states().get("running", 0) == 0)


@pytest.mark.slow
def test_the_version_before_goes_on_when_the_schema_is_upgraded(versions: Versions) -> None:
    """A worker that was there before, and a worker and a beat that come afterwards."""
    before, after = versions.version("before"), versions.version("next")
    releases.this_version(before)
    newer = releases.next_version(after, *ADDED)
    worker = versions.worker_of(before)
    worker.says(" ready.", 60)
    versions.expect_recorded(versions.launch("where", count=4), before)

    ids = versions.launch("where", count=10)
    versions.migrate_by(after)
    assert versions.schema() == newer
    ids += versions.launch("where", count=10)
    versions.expect_recorded(ids, before)

    worker.kill_group()
    versions.worker_of(before).says(" ready.", 60)
    versions.expect_recorded(versions.launch("where", count=4), before)
    decides(versions, versions.beat_of(before))
    for process in versions.started:
        assert "Can't write" not in process.output


@pytest.mark.slow
def test_the_next_version_runs_before_the_schema_is_upgraded(versions: Versions) -> None:
    after = versions.version("next")
    newer = next_version(after, *ADDED)
    assert versions.schema() == migrate.newest() < newer
    versions.worker_of(after).says(" ready.", 60)
    decides(versions, versions.beat_of(after))

    ids = versions.launch("where", count=10)
    versions.migrate_by(after)
    assert versions.schema() == newer
    ids += versions.launch("where", count=10)
    versions.expect_recorded(ids, after)
    for process in versions.started:
        assert "Can't write" not in process.output


@pytest.mark.slow
@pytest.mark.parametrize("first", ["schema", "programs"])
def test_the_newest_migration_is_rolled_out_under_load(
    empty_database: str, tmp_path: Path, first: str
) -> None:
    """Before the programs, or after them; each task runs in a process of its own.

    Beats need it first.
    """
    versions = Versions(empty_database, tmp_path)
    before, after = versions.version("before"), versions.version("after")
    releases.version_before(before)
    releases.this_version(after)
    ids = list[str]()

    def migrates() -> None:
        for _ in range(3):
            ids.extend(versions.launch("where", count=10))
        versions.migrate_by(after)
        assert versions.schema() == migrate.newest()

    try:
        versions.migrate_by(before)
        assert versions.schema() == migrate.known()[-2]
        versions.worker_of(before).says(" ready.", 60)
        if first == "schema":
            migrates()
        versions.worker_of(after).says(" ready.", 60)
        if first == "programs":
            beat = versions.beat_of(after)
            assert beat.wait(60) == 1
            assert f"needs {migrate.newest()} or newer; run `pgbeat migrate`" in beat.output
            migrates()
        decides(versions, versions.beat_of(before))
        ids += versions.launch("where", count=20)
        seen = versions.ended(*ids)
        assert {one.job.state for one in seen} == {"completed"}
        ran = {run.result for one in seen for run in one.runs}
        assert ran == {f"'{before}'", f"'{after}'"}
        for process in versions.started:
            assert "Can't write" not in process.output
    finally:
        versions.close()


@pytest.mark.slow
def test_a_worker_waits_for_a_schema_that_is_too_old(versions: Versions) -> None:
    after = versions.version("next")
    newer = releases.next_version(after, *ADDED, needs_it=True)
    worker = versions.worker_of(after)
    worker.says(f"this pgbeat needs {newer} or newer; run `pgbeat migrate`", 60)
    beat = versions.beat_of(after)
    assert beat.wait(60) == 1
    assert f"this pgbeat needs {newer} or newer; run `pgbeat migrate`" in beat.output

    versions.migrate_by(after)
    worker.says(" ready.", 60)
    versions.expect_recorded(versions.launch("where", count=4), after)
