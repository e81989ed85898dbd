"""`pgbeat import kubernetes`: manifests of CronJobs."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgbeat.schedules.importers import kubernetes
from tests.support.command_line import Sql, read, refused, run

COMMAND = ("import", "kubernetes", "--from", "-", "--task", "shop.tasks.container")
MANIFESTS = """
apiVersion: v1
kind: Service
metadata: {name: web}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: shop, creationTimestamp: 2026-01-01T00:00:00Z}
spec:
  schedule: "0 2 * * *"
  timeZone: Europe/Oslo
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 600
  jobTemplate:
    spec:
      backoffLimit: 3
      template:
        spec:
          restartPolicy: Never
          volumes: [{name: data}]
          containers:
            - name: backup
              image: shop/backup:1
              command: [backup]
              args: [--all, "{{ x"]
              env: [{name: LEVEL, value: "3"}, {name: TOKEN}]
---
kind: CronJob
metadata: {name: off, namespace: shop}
spec:
  schedule: "@hourly"
  suspend: true
  jobTemplate: {spec: {template: {spec: {containers: [{name: a, image: i}]}}}}
---
kind: CronJob
metadata: {name: two}
spec:
  schedule: "@hourly"
  jobTemplate:
    spec: {template: {spec: {containers: [{name: a}, {name: b}], initContainers: [{name: c}]}}}
"""


def cron_job(name: str = "s", container: dict[str, Any] | None = None, **spec: Any) -> Any:
    """A manifest; `spec` may have the key `status`."""
    status = spec.pop("status", {})
    metadata = {"name": name, "namespace": spec.pop("namespace", "shop")}
    pod = {"containers": [{"name": "c", "image": "i", **(container or {})}]}
    spec = {"schedule": "@daily", "jobTemplate": {"spec": {"template": {"spec": pod}}}, **spec}
    return {"kind": "CronJob", "metadata": metadata, "spec": spec, "status": status}


def test_each_manifest_becomes_a_row(database: str, sql: Sql) -> None:
    result = run(database, *COMMAND, input=MANIFESTS)
    assert result.stdout.startswith("3 schedules of Kubernetes in <stdin>.\nAdded 2 schedules:")
    assert "its containers are c, a, b" in result.stdout
    assert "not carried over: backoffLimit; env LEVEL, TOKEN; volumes data" in result.stdout
    assert "it names no time zone, so UTC is taken" in result.stdout
    assert "suspend these CronJobs before pgbeat's beat starts" in result.stderr
    columns = "name, cron, timezone, kwargs, overlap, grace, disabled_reason"
    assert sql(f"SELECT {columns} FROM pgbeat.schedules ORDER BY id") == [
        (
            "nightly", "0 2 * * *", "Europe/Oslo",
            {"image": "shop/backup:1", "command": ["backup"], "args": ["--all", "{{ '{{' }} x"]},
            "skip", timedelta(minutes=10), None,
        ),
        (
            "off", "@hourly", "UTC", {"image": "i", "command": [], "args": []},
            "allow", None, "disabled in Kubernetes",
        ),
    ]  # fmt: skip
    assert "2 schedules here" in run(database, *COMMAND, input=MANIFESTS).stdout
    changed = MANIFESTS.replace("Forbid", "Replace")
    assert "differs in overlap; --overwrite" in run(database, *COMMAND, input=changed).stdout
    run(database, *COMMAND, "--overwrite", input=changed)
    assert read(database, "status", "nightly")["overlap"] == "cancel_previous"


def test_a_list_has_last_runs(database: str) -> None:
    ran = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=5)
    status = {"lastScheduleTime": f"{ran:%Y-%m-%dT%H:%M:%SZ}"}
    items = [cron_job("a", schedule="@every 1h30m", status=status)]
    items += [cron_job("a", namespace="test", schedule=each) for each in ("@daily", "@hourly")]
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    result = run(database, *COMMAND, "--timezone", "Asia/Tokyo", input=given)
    assert "test/a" in result.stdout.partition("Not imported:")[2]  # the second of that name
    row = read(database, "status", "shop-a")
    assert (row["every"], datetime.fromisoformat(row["last_run"])) == (5400, ran)
    assert datetime.fromisoformat(row["next_run"]) == ran + timedelta(minutes=90)
    assert read(database, "status", "test-a")["timezone"] == "Asia/Tokyo"


@pytest.mark.parametrize(
    ("schedule", "cron"),
    [
        ("0  0 1 * 1", "0 0 1 * 1"),
        ("0 0 */2 * *", "0 0 */2 * *"),
        ("0 0 */2 * mon", "0 0 1-31/2 * mon"),
        ("0 0 1 * 5,*/2", "0 0 1 * 5,0-6/2"),
        ("0 0 */1 * mon", "0 0 */1 * mon"),
        ("0 0 ? * */2", "0 0 ? * */2"),
        ("0 0 * * 1/2,0-5/5,sat/3", "0 0 * * 1-6/2,0-5/5,sat-6/3"),
    ],
)
def test_day_and_weekday_are_either(schedule: str, cron: str) -> None:
    defaults = {"imagePullPolicy": "Always", "resources": {}, "terminationMessagePath": "/dev"}
    job = cron_job(schedule=schedule, container=defaults, timeZone="UTC")
    [arrival] = kubernetes.inventory("x", [job], task="t").arrivals
    assert arrival.when.columns == {"cron": cron, "timezone": "UTC"}
    assert arrival.remarks == ()


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"concurrencyPolicy": "Sometimes"}, "'Sometimes'; it is one of Allow, Forbid, Replace"),
        ({"startingDeadlineSeconds": "soon"}, "it can't be read: TypeError"),
        ({"schedule": "@every month"}, "'month'"),
        ({"status": {"lastScheduleTime": "yesterday"}}, "'yesterday'"),
        ({"jobTemplate": 5}, "its containers are none"),
        ({"container": {"command": [float("nan")]}}, "its kwargs can't be said in JSON"),
    ],
)
def test_what_can_not_come_is_listed(spec: dict[str, Any], reason: str) -> None:
    [refusal] = kubernetes.inventory("x", [cron_job(**spec)], task="t").refusals
    assert refusal.origin == "s" and reason in refusal.reason


@pytest.mark.parametrize(
    ("given", "exit_code", "reason"),
    [
        ("kind: Service\n---\nkind: Deployment", 1, "<stdin> holds only Deployment, Service"),
        ("", 1, "<stdin> holds nothing; expected manifests of kind CronJob"),
        ("kind: CronJob\nspec: {{ .Values.spec }}", 2, "<stdin>:2:"),
        ("kind: CronJob\nkind: CronJob", 2, "is there twice"),
        ("a: 1\n---\nb: [", 2, "<stdin>:4:1: this is not YAML"),
    ],
)
def test_files_that_are_none(database: str, given: str, exit_code: int, reason: str) -> None:
    assert reason in refused(run(database, *COMMAND, input=given), exit_code)
