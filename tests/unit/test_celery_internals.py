"""docs/contributing/celery-internals.md names all that pgbeat uses of others' inner parts."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from inspect import getsource
from itertools import chain
from operator import attrgetter
from typing import Any

import pytest
from celery import Celery
from django.core.exceptions import ImproperlyConfigured

from tests.support import sources
from tests.support.processes import ROOT

PAGE = (ROOT / "docs/contributing/celery-internals.md").read_text()
ROWS = [
    (name, since, where)
    for names, where in re.findall(r"^\| (`.+?) \| (.*?) \| .*?\|$", PAGE, re.M)
    for name, since in re.findall(r"`([^`]+)`(?: \(([\d.]+)\))?", names)
]
NAMES = {name for name, _, _ in ROWS}
OTHERS = ("celery", "kombu", "billiard", "flower", "django")
#: Classes of pgbeat whose bases are others'.
CLASSES = (
    "beat.scheduler:Scheduler",
    "broker.transport.channel:Channel",
    "broker.transport.outbox:OutboxConnection",
    "broker.transport.qos:QoS",
    "broker.transport.transport:Transport",
    "integrations.flower:PostgresBroker",
    "integrations.flower:TaskPage",
    "integrations.flower_history:Receiver",
    "integrations.flower_history:TaskEvents",
    "results.backend:ResultBackend",
    "results.waiting:ResultConsumer",
)


def resolved(name: str) -> Any:
    if name.startswith("app."):
        app = Celery(set_as_current=False, broker="memory://", backend="cache+memory://")
        return attrgetter(name.removeprefix("app."))(app)
    module, _, path = name.partition(":")
    return attrgetter(path)(import_module(module))


def is_set_by(name: str) -> bool:
    """Returns whether a class's code sets the attribute on its instances."""
    owner, _, attribute = name.rpartition(".")
    return attribute in getsource(resolved(owner))


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".")[:2]]


def is_private(path: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in path.split("."))


@pytest.mark.parametrize(("name", "since", "where"), ROWS, ids=[name for name, _, _ in ROWS])
def test_what_the_page_names_exists(name: str, since: str, where: str) -> None:
    for path in re.findall(r"`([\w/.]+)`", where):
        assert (ROOT / "pgbeat" / path).is_file(), path
    package = re.split(r"[.:]", name)[0].replace("app", "celery")
    if since and numbers(version(package)) < numbers(since):
        pytest.skip(f"{package} {version(package)} has it not yet")
    try:
        resolved(name)
    except AttributeError:
        assert is_set_by(name)


def imports() -> Iterator[tuple[str, str]]:
    for node in chain.from_iterable(sources.nodes().values()):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OTHERS:
            for alias in node.names:
                yield node.module or "", alias.name


def exists(module: str, name: str) -> bool:
    try:
        return hasattr(import_module(module), name) or bool(import_module(f"{module}.{name}"))
    except ModuleNotFoundError:
        is_of_django_6 = module.startswith(("django.tasks", "django.utils.json"))
        return is_of_django_6 and numbers(version("django")) < [6, 0]
    except (ImproperlyConfigured, RuntimeError):  # of Django, for models of apps it doesn't have
        return True


def test_all_that_is_imported_exists() -> None:
    """Also what is imported late, by a worker say."""
    assert {each for each in imports() if not exists(*each)} == set()


def private_imports() -> Iterator[str]:
    for module, name in imports():
        if is_private(f"{module}.{name}") and name != "_state":
            yield f"{module}:{name}"


def private_overrides() -> Iterator[str]:
    for name in CLASSES:
        bases = resolved(f"pgbeat.{name}").__mro__
        own = {key for base in bases if base.__module__.startswith("pgbeat") for key in vars(base)}
        for base in bases:
            if base.__module__.startswith(OTHERS):
                for key in own & vars(base).keys():
                    if is_private(key):
                        yield f"{base.__module__}:{base.__qualname__}.{key}"


def test_the_page_names_all_private_names_that_are_imported_or_overridden() -> None:
    found = {*private_imports(), *private_overrides()}
    assert "celery.canvas:_chain" in found
    assert "kombu.transport.virtual.base:AbstractChannel._put" in found
    # A method may have moved up or down among the bases.
    known = {*NAMES, *(re.sub(r":\w+", ":", name) for name in NAMES)}
    assert {name for name in found if name not in known} == set()
