"""Renders a chart by Helm's library: a program, for `tests.support.charts`.

Not imported: the library is Go, and a process with its threads could fork no more. It starts often,
so it imports little.
"""

import json
import sys

import helm_python

chart, values = sys.argv[1], json.load(sys.stdin)
outcome: dict[str, object] = {}
try:
    with helm_python.Chart.load(chart) as loaded:
        outcome["files"] = loaded.render(values, name="shop", namespace="apps")
    report = helm_python.lint(chart, values, strict=True)
    serious = [message for message in report["messages"] if message["severity"] > 1]
    outcome["remarks"] = [*serious, *report["errors"]]
except helm_python.HelmError as error:
    outcome["refused"] = str(error)
print(json.dumps(outcome))
