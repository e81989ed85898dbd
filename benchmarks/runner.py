"""Running a benchmark: its cases one after another, what it says meanwhile, and its end."""

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, Protocol, Self, TypeVar

from beats.machine import Stolen
from beats.measures import Figures
from beats.processes import Processes
from beats.report import Results, number
from rich.console import Console
from servers import Postgres


class Run:
    """One run of a benchmark, with what is started for it. Ctrl-C ends the block, and says so."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._json: Path | None = options.json
        self._code = 0
        #: Ends with the block.
        self.stack = ExitStack()
        #: For tables; and how it goes meanwhile.
        self.console = Console(width=None if sys.stdout.isatty() else 140)
        self.say = Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print
        #: Every figure, and what figures depend on: written at the end.
        self.results: dict[str, Any] = {}
        self.environment: dict[str, object] = {}

    def __enter__(self) -> Self:
        signal.signal(signal.SIGTERM, _interrupt)
        folder = tempfile.TemporaryDirectory(prefix="pgbeat-bench-")
        #: A scratch folder, removed at the end.
        self.folder = Path(self.stack.enter_context(folder))
        return self

    def postgres(self) -> Postgres:
        """The server that `PGBEAT_TEST_URL` names, or an embedded one. It has not begun."""
        return Postgres(os.environ.get("PGBEAT_TEST_URL"))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        is_interrupted = isinstance(error, KeyboardInterrupt)
        if is_interrupted:
            self.say("interrupted")
            self._code = 130
        # Nothing is left behind, however often somebody presses it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.stack.__exit__(kind, error, trace)
        return is_interrupted

    def finish(self) -> int:
        """Writes the figures, and returns the exit code: 130 after Ctrl-C."""
        if self._json:
            document = {"environment": self.environment, "results": self.results}
            self._json.write_text(json.dumps(document, indent=1) + "\n")
        return self._code


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """A signal's handler: stops everything as Ctrl-C does."""
    raise KeyboardInterrupt


class Named(Protocol):
    """A contender."""

    @property
    def name(self) -> str:
        """Its column in the tables."""


C = TypeVar("C", bound=Named)
#: A case: its measure, its title, and what to run for a contender.
Case = tuple[str, str, Callable[[C], Figures]]


def measure_all(
    cases: Iterable[Case[C]],
    contenders: Sequence[C],
    processes: Processes,
    say: Callable[[str], None],
    results: Results,
) -> None:
    """Runs every case for every contender, next to each other, into `results`."""
    for measure, title, run in cases:
        row = results.setdefault(measure, {}).setdefault(title, {})
        for contender in contenders:
            say(f"{measure}, {title}: {contender.name} …")
            stolen = Stolen()
            try:
                figures = run(contender)
            except Exception as error:  # the other figures are worth having all the same
                figures = {"error": str(error) or repr(error)}
            finally:
                processes.kill_all()
            row[contender.name] = {**figures, "stolen_percent": stolen.percent()}
            say(f"    {_brief(row[contender.name])}")


def _brief(figures: Figures) -> str:
    return ", ".join(
        f"{name} {number(value) if isinstance(value, int | float) else value}"
        for name, value in figures.items()
        if isinstance(value, int | float | str)
    )


def arguments_parser(
    description: str | None, measures: Sequence[str], contenders: str, known: Sequence[str]
) -> argparse.ArgumentParser:
    """Returns a parser for `--only`, `--json` and the option that names contenders."""
    parser = argparse.ArgumentParser(description=description)
    for flag, metavar, names in (("only", "MEASURES", measures), (contenders, "NAMES", known)):
        parser.add_argument(
            f"--{flag}",
            type=lambda text, names=names: names_of(text, names),
            metavar=metavar,
            default=list(names),
            help=f"of {','.join(names)}",
        )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    return parser


def names_of(text: str, known: Sequence[str]) -> list[str]:
    """The names in a comma-separated list, in the order in which they are known.

    Raises what argparse shows to the user.
    """
    by_lower = {name.lower(): name for name in known}
    names = [by_lower.get(part.strip().lower(), "") for part in text.split(",")]
    if "" in names:
        raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(known)}")
    return [name for name in known if name in names]


class Installable(Protocol):
    """A class of contenders."""

    def missing(self) -> str:
        """Returns what isn't there, in words; "" if all is."""


def available(
    names: Sequence[str], contenders: Mapping[str, Installable], say: Callable[[str], None]
) -> list[str]:
    """Returns those of the names that can be compared; says why the others are left out."""
    found = []
    for name in names:
        if missing := contenders[name].missing():
            say(f"{name}: skipped ({missing})")
        else:
            found.append(name)
    return found
