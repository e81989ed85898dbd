"""Tells which `PGBEAT_*` variables are settings, and which are misspelt."""

import logging
import re
from collections.abc import Collection, Iterator, Mapping

from pgbeat.errors import Problem
from pgbeat.suggest import nearest

logger = logging.getLogger("pgbeat")

_PREFIX = "PGBEAT_"
#: Variables that are not settings: options of the command line, and those that signs of life, the
#: example app, the deployment files, the tests and the benchmarks read.
_OTHERS = frozenset(
    {
        "APP", "ADMIN", "HEALTH_DIR", "PRICES_URL", "BACKUPS", "ENV_FILE", "QUEUES", "CONCURRENCY",
        "ROLE", "WEB_PORT", "TEST_URL", "SMOKE", "SMOKE_SCHEME", "BENCH",
    }
)  # fmt: skip
#: Variables without the prefix, by the setting that they set if nothing else does.
ELSEWHERE = {"version": "GIT_SHA"}
#: Variables that Kubernetes and Docker set for a service named pgbeat.
_OF_SERVICES = re.compile(r"(\w+_)?(SERVICE_(HOST|PORT)\w*|PORT(_\d+_(TCP|UDP)\w*)?)")
#: How similar a name must be to count as a misspelling.
_ALIKE = 0.8
#: Variables that this process has warned about.
_warned: set[str] = set()


def variable(setting: str) -> str:
    """Returns the name of a setting's variable."""
    return _PREFIX + setting.upper()


def value(environ: Mapping[str, str], setting: str) -> str | None:
    """Returns a setting's value in the environment; `None` if it has none there.

    `PGBEAT_APP` is the command line's `-A`, so it is not read as the setting `pgbeat_app`.
    """
    return None if setting.upper() in _OTHERS else environ.get(variable(setting)) or None


def misspelt(environ: Mapping[str, str], settings: Collection[str]) -> Iterator[Problem]:
    """Yields a problem for each variable whose name is almost that of a setting.

    Other unknown ones are logged, once a process: the prefix is not ours alone.
    """
    known = _OTHERS.union(map(str.upper, settings))
    for name in sorted(environ):
        setting = name.removeprefix(_PREFIX)
        if setting == name or setting in known or _OF_SERVICES.fullmatch(setting):
            continue
        if near := nearest(setting, known, cutoff=_ALIKE):
            message = f"{name}: no such setting; did you mean {_PREFIX}{near}?"
            yield Problem(name, "unknown_field", message)
        elif name not in _warned:
            _warned.add(name)
            near = nearest(setting, known)
            hint = f"; did you mean {_PREFIX}{near}?" if near else ""
            logger.warning("%s is not a setting of pgbeat and has no effect%s", name, hint)
