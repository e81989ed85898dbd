"""The Helm chart: what it renders, and that its commands, probes and queries work here.

No cluster is there: the schemas of Kubernetes and of the operators stand for it.
"""

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from celery import Celery

from pgbeat.cli.operations.web import web_command
from pgbeat.version import __version__
from pgbeat.web import create_app
from tests.support.charts import CHART, manifests, refusal
from tests.support.processes import ROOT, Process, Processes, until
from tests.support.transport_workers import TransportWorkers

EVERYTHING: dict[str, Any] = {
    "imagePullSecrets": [{"name": "registry"}],
    "env": [{"name": "TZ", "value": "UTC"}],
    "volumes": [{"name": "ca", "secret": {"secretName": "ca"}}],
    "volumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
    "beat": {"antiAffinity": "required"},
    "workers": [
        {"name": "default", "autoscaling": {"enabled": True, "minReplicas": 0}},
        {
            "name": "slow",
            "queues": ["reports"],
            "concurrency": 2,
            "terminationGracePeriodSeconds": 3600,
            "softShutdownSeconds": 3500,
            "tracked": False,
            "extraArgs": ["--max-tasks-per-child=10"],
        },
        {"name": "io", "queues": ["mail", "feeds"], "pool": "threads", "concurrency": 50},
    ],
    "web": {
        "forwardedAllowIps": "10.0.0.0/8",
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "host": "jobs.example.com",
            "tlsSecret": "jobs-tls",
            "annotations": {"example.com/size": "1m"},
        },
    },
    "migrate": {"secret": "proj-owner"},
    "networkPolicy": {
        "enabled": True,
        "postgres": [{"ipBlock": {"cidr": "10.1.2.3/32"}}],
        "egress": [{"ports": [{"port": 443}]}],
        "webFrom": [{"namespaceSelector": {}}],
    },
    "monitoring": {
        "labels": {"release": "prometheus"},
        "serviceMonitor": {"enabled": True, "tokenSecret": "pgbeat-metrics"},
        "podMonitor": {"enabled": True, "from": [{"namespaceSelector": {}}]},
        "prometheusRule": {"enabled": True},
    },
    "serviceAccount": {"annotations": {"example.com/role": "proj"}},
    "podAnnotations": {"example.com/team": "shop"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "priorityClassName": "high",
}
#: One that the chart allows, and newer ones.
KUBERNETES = ("1.25", "1.29", "1.33", "1.37")
OPERATORS = {
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
}

Manifests = dict[tuple[str, str], dict[str, Any]]


def named(found: list[dict[str, Any]]) -> Manifests:
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(by_name) == len(found)
    return by_name


@pytest.fixture(scope="module")
def least() -> Manifests:
    """The manifests of the required values alone."""
    return named(manifests())


@pytest.fixture(scope="module")
def everything() -> Manifests:
    return named(manifests(**EVERYTHING))


def pods(found: Manifests) -> Iterator[tuple[str, dict[str, Any]]]:
    for (kind, name), each in found.items():
        if kind in ("Deployment", "Job"):
            yield name, each["spec"]["template"]["spec"]


def container(found: Manifests, name: str) -> dict[str, Any]:
    (only,) = dict(pods(found))[name]["containers"]
    assert isinstance(only, dict)
    return only


# -- what it makes


def test_least_and_everything(least: Manifests, everything: Manifests) -> None:
    assert set(least) == {
        ("Deployment", "shop-pgbeat-beat"),
        ("Deployment", "shop-pgbeat-web"),
        ("Deployment", "shop-pgbeat-worker-default"),
        ("Job", "shop-pgbeat-migrate"),
        ("PodDisruptionBudget", "shop-pgbeat-beat"),
        ("PodDisruptionBudget", "shop-pgbeat-web"),
        ("PodDisruptionBudget", "shop-pgbeat-worker-default"),
        ("Service", "shop-pgbeat-web"),
        ("ServiceAccount", "shop-pgbeat"),
    }
    assert {kind for kind, _ in everything} - {kind for kind, _ in least} == {
        *("Ingress", "NetworkPolicy", "PodMonitor", "PrometheusRule"),
        *("ScaledObject", "ServiceMonitor", "TriggerAuthentication"),
    }
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_knows_every_field(
    least: Manifests, everything: Manifests, version: str
) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for each in [*least.values(), *everything.values()]:
        if each["apiVersion"] not in OPERATORS:
            kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("api", OPERATORS)
def test_operators_know_every_field(everything: Manifests, api: str) -> None:
    pytest.importorskip(OPERATORS[api].rpartition(".")[0])
    models = importlib.import_module(OPERATORS[api])
    found = [each for each in everything.values() if each["apiVersion"] == api]
    assert found
    for each in found:
        model = getattr(models, each["kind"]).model_validate(each)
        # A field that the model doesn't know is left out.
        assert model.model_dump(by_alias=True, exclude_unset=True, mode="json") == each


def test_pods_may_do_little_and_get_no_passwords(everything: Manifests) -> None:
    for name, pod in pods(everything):
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        security = pod["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] == 10001
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        (only,) = pod["containers"]
        assert only["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert only["envFrom"][0] == {"secretRef": {"name": "proj"}}, name
        assert only["volumeMounts"][0]["name"] == "tmp"
        (folder,) = [each["value"] for each in only["env"] if each["name"] == "PGBEAT_HEALTH_DIR"]
        # Not the volume itself, which all may write to.
        assert str(Path(folder).parent) == only["volumeMounts"][0]["mountPath"]


def test_services_budgets_and_policies_select_their_pods(everything: Manifests) -> None:
    labels = {
        name: each["spec"]["template"]["metadata"]["labels"]
        for (kind, name), each in everything.items()
        if kind in ("Deployment", "Job")
    }

    def selected(by: dict[str, str]) -> set[str]:
        return {name for name, has in labels.items() if by.items() <= has.items()}

    for (kind, name), each in everything.items():
        spec = each.get("spec", {})
        match kind:
            case "Deployment" | "PodDisruptionBudget":
                assert selected(spec["selector"]["matchLabels"]) == {name}
            case "Service":
                assert selected(spec["selector"]) == {name}
            case "NetworkPolicy" if name != "shop-pgbeat-workers":
                one = {name} if name in labels else set(labels)
                assert selected(spec["podSelector"]["matchLabels"]) == one
    assert everything["Deployment", "shop-pgbeat-beat"]["spec"]["template"]["spec"]["affinity"]
    service = everything["Service", "shop-pgbeat-web"]["metadata"]["labels"]
    monitor = everything["ServiceMonitor", "shop-pgbeat-web"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service.items()
    assert service[monitor["jobLabel"]] == "pgbeat"  # as the alerts ask


def test_pods_reach_only_what_values_name(everything: Manifests) -> None:
    for name in ("shop-pgbeat", "shop-pgbeat-migrate"):
        spec = everything["NetworkPolicy", name]["spec"]
        assert spec["policyTypes"] == ["Ingress", "Egress"] and "ingress" not in spec
        ports = [[port["port"] for port in rule["ports"]] for rule in spec["egress"]]
        assert ports == [[5432], [53, 53], [443]]
        assert spec["egress"][0]["to"] == [{"ipBlock": {"cidr": "10.1.2.3/32"}}]
    (rule,) = everything["NetworkPolicy", "shop-pgbeat-web"]["spec"]["ingress"]
    assert rule == {"ports": [{"port": "http"}], "from": [{"namespaceSelector": {}}]}


def test_workers_are_scraped_where_they_listen(everything: Manifests, tmp_path: Path) -> None:
    monitor = everything["PodMonitor", "shop-pgbeat-workers"]["spec"]
    assert "jobLabel" not in monitor  # alerts take the job `pgbeat` for the web side
    (endpoint,) = monitor["podMetricsEndpoints"]
    policy = everything["NetworkPolicy", "shop-pgbeat-workers"]["spec"]
    by = monitor["selector"]
    assert policy["podSelector"] == by
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": endpoint["port"]}]
    (component,) = by["matchExpressions"]
    for name, pod in pods(everything):
        (only,) = pod["containers"]
        has = only.get("ports", ())
        assert (name.removeprefix("shop-pgbeat-") in component["values"]) == (
            endpoint["port"] not in {port["name"] for port in has}
        )
    of = container(everything, "shop-pgbeat-worker-io")
    listen = environ(of, tmp_path)["PGBEAT_METRICS_LISTEN"]
    assert listen == f"0.0.0.0:{of['ports'][0]['containerPort']}"


def test_the_web_side_believes_the_ingress_controller(
    least: Manifests, everything: Manifests
) -> None:
    name = "FORWARDED_ALLOW_IPS"
    for found, wanted in ((least, {}), (everything, {"shop-pgbeat-web": "10.0.0.0/8"})):
        variables = {pod: container(found, pod)["env"] for pod, _ in pods(found)}
        assert wanted == {
            pod: each["value"]
            for pod, env in variables.items()
            for each in env
            if each["name"] == name
        }


def test_hooks_need_nothing_of_the_release(everything: Manifests) -> None:
    hooks = [
        each
        for each in everything.values()
        if "helm.sh/hook" in each["metadata"].get("annotations", {})
    ]
    assert {each["kind"] for each in hooks} == {"Job", "NetworkPolicy"}
    assert "serviceAccountName" not in dict(pods(everything))["shop-pgbeat-migrate"]
    sources = container(everything, "shop-pgbeat-migrate")["envFrom"]
    assert [each["secretRef"]["name"] for each in sources] == ["proj", "proj-owner"]


def test_values_of_a_worker_override_the_defaults(everything: Manifests) -> None:
    scaled = everything["Deployment", "shop-pgbeat-worker-default"]["spec"]
    assert "replicas" not in scaled
    slow = everything["Deployment", "shop-pgbeat-worker-slow"]["spec"]
    assert slow["replicas"] == 2
    assert slow["template"]["spec"]["terminationGracePeriodSeconds"] == 3600
    args = container(everything, "shop-pgbeat-worker-slow")["args"]
    assert {"--queues=reports", "--concurrency=2", "--max-tasks-per-child=10"} <= set(args)
    assert args[-2:] == ["--", "worker.soft_shutdown_timeout=3500"]
    args = container(everything, "shop-pgbeat-worker-io")["args"]
    assert args[1:4] == ["--queues=mail,feeds", "--concurrency=50", "--pool=threads"]


def test_the_address_of_the_ingress_is_that_of_the_console(everything: Manifests) -> None:
    env = container(everything, "shop-pgbeat-beat")["env"]
    assert {"name": "PGBEAT_WEB_URL", "value": "https://jobs.example.com"} in env
    assert everything["Ingress", "shop-pgbeat-web"]["spec"]["tls"] == [
        {"hosts": ["jobs.example.com"], "secretName": "jobs-tls"}
    ]


def test_the_alerts_are_those_of_the_file(everything: Manifests) -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text())
    assert everything["PrometheusRule", "shop-pgbeat"]["spec"] == rules
    assert (CHART / "files" / "rules.yml").is_symlink()


# -- what it refuses

SCALED = {"autoscaling": {"enabled": True}}
REFUSED: dict[str, dict[str, Any]] = {
    "image.repository": {"image": {"tag": "1"}},
    "image.tag": {"image": {"repository": "proj"}},
    "secret.name": {"secret": {}},
    "env: DATABASE_URL": {"env": [{"name": "DATABASE_URL", "value": "postgresql://me:pw@db/x"}]},
    "env: API_TOKEN": {"env": [{"name": "API_TOKEN", "value": "pw"}]},
    "web.ingress.host": {"web": {"ingress": {"enabled": True}}},
    "web.ingress.enabled needs": {"web": {"enabled": False, "ingress": {"enabled": True}}},
    "serviceMonitor.tokenSecret": {"monitoring": {"serviceMonitor": {"enabled": True}}},
    "serviceMonitor needs web": {
        "web": {"enabled": False},
        "monitoring": {"serviceMonitor": {"enabled": True, "tokenSecret": "t"}},
    },
    "networkPolicy.postgres": {"networkPolicy": {"enabled": True}},
    "two have the name": {"workers": [{"name": "a"}, {"name": "a", "queues": ["b"]}]},
    "set concurrency to 1": {"workers": [{"name": "a", "pool": "solo"}]},
    "needs the pool prefork": {
        "workers": [{"name": "a", "pool": "gevent", "softShutdownSeconds": 10}]
    },
    "softShutdownSeconds + 30 (310)": {"workers": [{"name": "a", "softShutdownSeconds": 280}]},
    "maxReplicas is below": {
        "workers": [{"name": "a", "autoscaling": {"enabled": True, "minReplicas": 11}}]
    },
    'queue "celery" has two': {"workers": [{"name": "a"}, {"name": "b", **SCALED}]},
    "/workers/0/queues/0": {"workers": [{"name": "a", "queues": ["it's"]}]},
    "'bogus' not allowed": {"beat": {"bogus": 1}},
}


@pytest.mark.parametrize("why", REFUSED)
def test_values_that_can_not_work_are_refused(why: str) -> None:
    assert why in refusal(**REFUSED[why])


# -- that it works


def argv(of: dict[str, Any]) -> list[str]:
    """Returns the command that a container runs, in this environment."""
    command = [*of["command"], *of.get("args", ())]
    return [sys.executable, "-m", *command]


def environ(of: dict[str, Any], folder: Path) -> dict[str, str]:
    env = {each["name"]: each["value"] for each in of["env"]}
    return {**env, "PGBEAT_HEALTH_DIR": str(folder / "health")}


@pytest.mark.slow
def test_processes_start_and_answer_their_probes(processes: Processes, tmp_path: Path) -> None:
    found = named(
        manifests(app="tests.support.apps.basic", workers=[{"name": "w", "concurrency": 1}])
    )
    migration = container(found, "shop-pgbeat-migrate")
    done = processes.run(*argv(migration), PGBEAT_URL=processes.database)
    assert done.wait(60) == 0, done.output
    for role, name in (("beat", "shop-pgbeat-beat"), ("worker", "shop-pgbeat-worker-w")):
        of = container(found, name)
        env = {**environ(of, tmp_path), "PGBEAT_URL": processes.database}
        process = processes.run(*argv(of), **env)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert _probed(process, of[probe]["exec"]["command"], {**processes.env, **env}), role
        assert "PGBEAT_HEALTH_DIR is not a setting" not in process.output


def _probed(process: Process, command: list[str], env: dict[str, str]) -> bool:
    def succeeds() -> bool:
        assert process.poll() is None, process.output
        probe = [sys.executable, "-m", *command]
        return subprocess.run(probe, env=env, cwd=ROOT, check=False).returncode == 0

    return until(succeeds, 60, " ".join(command))


def test_the_web_side_has_its_probes(least: Manifests) -> None:
    of = container(least, "shop-pgbeat-web")
    assert of["args"][:2] == ["pgbeat", "web"]
    assert web_command.make_context("web", of["args"][2:]).params["port"] == 8080
    app = create_app(Celery("chart", broker="pgbeat+postgresql://localhost/none"))
    probes = [of[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe")]
    assert set(probes) == {"/healthz", "/readyz"} <= set(app.openapi()["paths"])
    assert "/metrics" in app.openapi()["paths"]


@pytest.mark.slow
def test_a_soft_shutdown_gives_back_what_does_not_end(
    transport_workers: TransportWorkers, tmp_path: Path
) -> None:
    worker = {"name": "w", "concurrency": 2, "softShutdownSeconds": 3}
    found = named(manifests(app=transport_workers.module, workers=[worker]))
    of = container(found, "shop-pgbeat-worker-w")
    late = json.dumps({"task_acks_late": True})
    process = transport_workers.run(*argv(of), **environ(of, tmp_path), TESTS_SETTINGS=late)
    ends, stays = (transport_workers.send("hold", gate) for gate in "ab")
    transport_workers.await_started([ends, stays], 60)
    process.terminate()
    process.says("Initiating Soft Shutdown")
    transport_workers.open("a")
    process.wait(30)
    assert transport_workers.ids() == [stays]
    rows = transport_workers.sql("SELECT visible, claimed_by, deliveries FROM kombu_message")
    assert rows == [(True, None, 0)]


def test_the_autoscaler_counts_claims_too(transport_workers: TransportWorkers) -> None:
    found = named(manifests(workers=[{"name": "w", "queues": ["celery", "b"], **SCALED}]))
    (trigger,) = found["ScaledObject", "shop-pgbeat-worker-w"]["spec"]["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("postgresql", "AverageValue")
    assert trigger["metadata"]["targetQueryValue"] == "4"
    query = trigger["metadata"]["query"]
    assert transport_workers.sql(query) == [(0.0,)]
    late = {"task_acks_late": True}
    worker = transport_workers.start("-P", "threads", "-c", "1", settings=late)
    held = [transport_workers.send("hold", "a") for _ in range(2)]
    transport_workers.await_started(held[:1])
    transport_workers.app.send_task("transport.note", (1,), queue="b")
    transport_workers.app.send_task("transport.note", (1,), queue="other")
    until(lambda: transport_workers.sql(query) == [(3.0,)])
    transport_workers.open("a")
    until(lambda: transport_workers.sql(query) == [(1.0,)])
    worker.terminate()


def test_the_pods_of_the_web_side_are_one_target(everything: Manifests, tmp_path: Path) -> None:
    """Of targets with the same labels, Prometheus scrapes one."""
    (endpoint,) = everything["ServiceMonitor", "shop-pgbeat-web"]["spec"]["endpoints"]
    rules = [
        {{"targetLabel": "target_label"}.get(key, key): value for key, value in rule.items()}
        for rule in endpoint["relabelings"]
    ]
    of_operator = {"source_labels": ["__address__"], "target_label": "pod"}
    job = {
        "job_name": "pgbeat",
        "static_configs": [{"targets": ["10.0.0.1:8080", "10.0.0.2:8080"]}],
        "relabel_configs": [of_operator, *rules],
    }
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump({"scrape_configs": [job]}))
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    command = ["promtool", "check", "service-discovery", "--timeout=1s", str(file), "pgbeat"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second = (target["labels"] for target in json.loads(done.stdout))
    assert first == second
    assert first["instance"] == "shop-pgbeat-web.apps.svc:8080"
