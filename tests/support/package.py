"""Builds the package as a release does, twice, and installs the wheel where nothing else is."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.processes import ROOT

LOCK = ROOT / ".ci/constraints.txt"
#: What may be different where somebody else builds it, and must not be in the result.
ELSEWHERE = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "SOURCE_DATE_EPOCH": "1", "PYTHONHASHSEED": "7"}
#: What tests and tools leave in a checkout.
LITTER = ("pgbeat/__pycache__/lanes.cpython-311.pyc", "tasks/old.pyc", ".mypy_cache/x", "build/x")


class Package(NamedTuple):
    """The results of two builds, and a virtual environment with the wheel."""

    #: The folders of the results.
    first: Path
    second: Path
    venv: Path

    @property
    def wheel(self) -> Path:
        (wheel,) = self.first.glob("*.whl")
        return wheel

    @property
    def sdist(self) -> Path:
        (sdist,) = self.first.glob("*.tar.gz")
        return sdist


def tracked() -> list[str]:
    """Returns the paths of all files in the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in names.split("\0") if name and (ROOT / name).exists())


@contextmanager
def once(folder: Path) -> Iterator[bool]:
    """Yields whether the folder is empty, and to be filled; of several processes to one."""
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "done"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not done.exists()
        done.touch()


def package(folder: Path) -> Package:
    """Returns what the folder has, which one process of a run fills."""
    found = Package(folder / "dist", folder / "other-dist", folder / "venv")
    with once(folder) as is_empty:
        if is_empty:
            _build_both(folder, found)
            install(found.venv, found.wheel)
    return found


def _build_both(folder: Path, results: Package) -> None:
    for name in ("checkout", "other"):
        for path in tracked():
            target = folder / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copy2 if name == "checkout" else shutil.copy)(ROOT / path, target)
    for path in LITTER:
        (folder / "other" / path).parent.mkdir(exist_ok=True)
        (folder / "other" / path).write_text("litter")
    command = [sys.executable, "-m", "nox", "-s", "package", "--"]
    builds = [
        subprocess.Popen([*command, str(results.first)], cwd=folder / "checkout", umask=0o022),
        subprocess.Popen(
            [*command, str(results.second)],
            cwd=folder / "other",
            umask=0o077,
            env={**os.environ, **ELSEWHERE},
        ),
    ]
    assert [build.wait(300) for build in builds] == [0, 0]


def install(venv: Path, *requirements: str | Path) -> None:
    """Makes a virtual environment if there is none, and installs into it."""
    if not venv.exists():
        subprocess.run(["uv", "venv", "-q", "--python", sys.executable, venv], check=True)
    options: list[str | Path] = ["--python", venv / "bin/python", "--constraints", LOCK]
    subprocess.run(["uv", "pip", "install", "-q", *options, *requirements], check=True)


def run(venv: Path, *command: str, cwd: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Runs a program of the environment, whose every warning is an error; returns its end."""
    env = {"PATH": f"{venv}/bin:/usr/bin:/bin", "PYTHONWARNINGS": "error", "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        [str(venv / "bin" / command[0]), *command[1:]],
        cwd=cwd,
        env={**env, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
