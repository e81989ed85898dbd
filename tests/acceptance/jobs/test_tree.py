"""The tree of a canvas that real workers run: chains, groups, chords, tracked and not, retries."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord

from tests.support.command_line import run
from tests.support.policy_workers import NARROW, PolicyWorkers
from tests.support.processes import until
from tests.support.rows import Sql

POLICIES: dict[str, dict[str, Any]] = {
    "policies.add": NARROW,
    "policies.total": NARROW,
    "policies.held": NARROW,
    "policies.flaky": {"max_attempts": 3, "retry_base": 0.1},
}


class Site(PolicyWorkers):
    """A worker of tasks with and without policies, and a client."""

    policies = POLICIES

    def start_tracking(self, track: str) -> None:
        """Starts a worker of two threads."""
        self.env["TESTS_SETTINGS"] = json.dumps({"pgbeat_track": track})
        self.start("-P", "threads")

    def task(self, name: str, *args: Any, **options: Any) -> Any:
        """Returns a signature that takes no other arguments."""
        signature = super().task(name, *args, **options)
        signature.set_immutable(True)
        return signature

    def tree(self, job_id: str) -> dict[str, Any]:
        """Returns the root of a job's tree, as the command prints it."""
        done = run(self.database, "jobs", "tree", job_id, "--admin", "--json")
        assert done.exit_code == 0, done.output
        root: dict[str, Any] = json.loads(done.stdout)["root"]
        return root


@pytest.fixture
def site(database: str, sql: Sql, tmp_path: Path) -> Iterator[Site]:
    """A site with a lane of one slot."""
    with Site.at_work(database, tmp_path, sql) as site:
        yield site


def shape(node: dict[str, Any]) -> Any:
    """Returns a tree as nested tuples of what each node is."""
    head = " ".join(
        filter(
            None, (node["relation"], node["kind"], node["name"].partition(".")[2], node["state"])
        )
    )
    return (head, *map(shape, node["children"])) if node["children"] else head


@pytest.mark.slow
def test_a_canvas_is_one_tree(site: Site, sql: Sql) -> None:
    """A chain with a chord of a chain, a retried task, and what a task sends, all tracked."""
    site.start_tracking("all")
    members = [
        site.task("flaky", 2),
        chain(site.task("add", 1), site.task("add", 2), site.task("flaky", 1)),
    ]
    chain(site.task("parent", 1), chord(members, site.task("total", [1]))).apply_async().get(
        timeout=60
    )
    until(lambda: not sql("SELECT 1 FROM pgbeat.unfinished_jobs"), 20, "all have ended")
    ids = [row[0] for row in sql("SELECT id::text FROM pgbeat.jobs")]
    expected = (
        "chain",
        ("job parent completed", "job add completed"),
        (
            "then chord",
            "job flaky completed",
            ("chain", "job add completed", "then job add completed", "then job flaky completed"),
            "body job total completed",
        ),
    )
    assert all(shape(site.tree(job_id)) == expected for job_id in (ids[0], ids[-1]))


def test_what_is_not_tracked_is_said_to_be_so(site: Site, sql: Sql) -> None:
    """A waiting chord: a member in its lane, a failed one, and one of which only a result tells."""
    site.start_tracking("launched")
    members = [
        site.task("held", "a"),
        site.task("held", "b"),
        site.task("flaky", 9),
        site.task("parent", 0),
    ]
    chord(members, site.task("total", [1])).apply_async()
    until(lambda: sql("SELECT done FROM pgbeat.chords") == [(2,)], 30, "two have returned")
    until(lambda: sql("SELECT 1 FROM pgbeat.jobs WHERE state = 'failed'"), 20, "one has failed")
    until(lambda: sql("SELECT 1 FROM pgbeat.jobs WHERE state = 'running'"), 20, "one is held")
    [(job_id,)] = sql("SELECT id::text FROM pgbeat.jobs WHERE task = 'policies.flaky'")
    root = site.tree(job_id)
    body = root["children"][-1]
    assert root["kind"] == "chord"
    assert [each["state"] for each in root["children"]] == [
        "running",
        "pending",
        "failed",
        "not tracked",
        None,
    ]
    assert root["children"][1]["where"].startswith("waits in lane 'narrow' at place 1")
    assert root["children"][3]["counts"] == {"not tracked": 1}
    assert root["counts"] == {"running": 1, "pending": 1, "failed": 1, "not tracked": 1}
    assert (body["name"], body["where"]) == ("policies.total", "waits for 2 of 4 members")
    assert body["waits_for"] == [each["id"] for each in root["children"][:2]]
    for gate in ("a", "b"):
        (site.folder / f"gate-{gate}").touch()
