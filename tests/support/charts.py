"""Renders the chart in `deploy/kubernetes`, as `helm template` does."""

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import yaml

from tests.support.processes import ROOT

CHART = ROOT / "deploy" / "kubernetes"
#: The values that have no default.
REQUIRED = {
    "image": {"repository": "registry.example.com/proj", "tag": "1.4"},
    "secret": {"name": "proj"},
}


def manifests(**values: Any) -> list[dict[str, Any]]:
    """Returns what Helm would send to a cluster, for the required values and these."""
    outcome = _outcome(values)
    assert "refused" not in outcome, outcome["refused"]
    assert outcome["remarks"] == []
    found = []
    for name, text in outcome["files"].items():
        if not name.endswith("NOTES.txt"):
            found += [manifest for manifest in yaml.safe_load_all(text) if manifest]
    return found


def refusal(**values: Any) -> str:
    """Returns why Helm refuses these values."""
    return str(_outcome(values)["refused"])


def _outcome(values: dict[str, Any]) -> dict[str, Any]:
    if find_spec("helm_python") is None:
        pytest.skip("helm-python-sdk is not installed")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "helm.py"), str(CHART)],
        input=json.dumps({**REQUIRED, **values}),
        capture_output=True,
        text=True,
        check=True,
    )
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome
